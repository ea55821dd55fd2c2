"""Forks: a fork is what the calls up to its place make from scratch, and both go on alone."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import abut
from abut.errors import TrajectoryError
from abut.parts import Content, Part, Scaffold
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.data.oracle import plain, tokens_of
from tests.kit.data.tokenizers_made import word_level

Call = Callable[[abut.Trajectory], object]
NAMES = ("prompt_ids", "completion_ids", "logprobs", "env_mask")


@cache
def demo() -> abut.Tokenizer:
    return abut.Tokenizer.from_file(DEMO_ASSETS / "tokenizer.json")


def ask(*parts: Part) -> Call:
    return lambda trajectory: (trajectory.append_parts(list(parts)), trajectory.request())


def sample(text: str, logprob: float = -0.5) -> Call:
    ids = demo().encode(text)
    return lambda trajectory: trajectory.append_sampled(ids, np.full(len(ids), logprob))


def say(text: str) -> Call:
    return lambda trajectory: trajectory.append_text(text)


# A turn that is cut inside a word, one that ends on a control token, one in which nothing was
# sampled, and text that nobody has seen yet.
CALLS: tuple[Call, ...] = (
    ask(Scaffold("<|im_start|>user\n"), Content("count"), Scaffold("<|im_start|>assistant\n")),
    sample("one tw"),
    ask(Content("o thr")),
    sample("ee<|im_end|>"),
    ask(Scaffold("\n<|im_start|>user\n"), Content("more"), Scaffold("<|im_start|>assistant\n")),
    sample(""),
    ask(Content("fo")),
    sample("ur"),
    say(" fi"),
)


def built(*calls: Call, tokenizer: abut.Tokenizer | None = None) -> abut.Trajectory:
    trajectory = abut.Trajectory(tokenizer or demo())
    for call in calls:
        call(trajectory)
    return trajectory


def places() -> list[tuple[int, int]]:
    """Each place where the conversation can be forked, and how many calls it is from scratch."""
    first, second, empty, last = built(*CALLS).turns
    return [
        (0, 0),
        (first.start, 1),
        (first.end, 2),
        (second.start, 3),
        (second.end, 4),
        (empty.start, 5),
        (last.start, 7),
        (last.end, 8),
        (len(built(*CALLS)), 9),
    ]


def refusal(trajectory: abut.Trajectory, at: int) -> str:
    with pytest.raises(TrajectoryError) as caught:
        trajectory.fork(at)
    return str(caught.value)


@pytest.mark.parametrize(("at", "calls"), places())
def test_a_fork_goes_on_as_a_trajectory_that_was_built_from_scratch(at: int, calls: int) -> None:
    fork, scratch = built(*CALLS).fork(at), built(*CALLS[:calls])
    assert tokens_of(fork) == tokens_of(scratch)
    for call in (say("ve s"), say("ix<|im"), say("_end|>"), *CALLS[:4], say("!")):
        call(fork)
        call(scratch)
        assert tokens_of(fork) == tokens_of(scratch)
    for name in NAMES:
        ours, theirs = getattr(fork.columns(), name), getattr(scratch.columns(), name)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("at", "calls"), places())
def test_the_seams_behind_a_fork_are_those_from_scratch(at: int, calls: int) -> None:
    fork, scratch = built(*CALLS).fork(at), built(*CALLS[:calls])
    for text in ("ve s", "ix", "\n", " seven"):
        assert fork.append_text(text) == scratch.append_text(text)


def test_tokens_that_are_only_copied_are_not_those_from_scratch() -> None:
    """The negative control: text that is still open joins what follows; its ids alone do not."""
    open_text = built(say("on"))
    copied, fork = built(), open_text.fork(len(open_text))
    copied.append_text("on")
    copied.request()  # as ids that were copied: nothing joins them any more
    for trajectory in (copied, fork):
        trajectory.append_text("e")
    assert plain(fork.ids) == plain(demo().encode("one")) != plain(copied.ids)


@pytest.mark.parametrize("at", [at for at, _ in places()])
def test_neither_changes_what_the_other_holds(at: int) -> None:
    original = built(*CALLS)
    request = original.request()
    before, sent = tokens_of(original), request.tolist()
    fork = original.fork(at)
    for call in (say("x"), *CALLS[:4]):
        call(fork)
    assert (tokens_of(original), request.tolist()) == (before, sent)
    held, asked = tokens_of(fork), fork.request()
    told = asked.tolist()
    for call in (sample("y"), say("z"), *CALLS[:4]):
        call(original)
    assert (tokens_of(fork), asked.tolist()) == (held, told)
    assert not np.shares_memory(asked, original.request())


def test_a_turn_is_sampled_once_more_from_its_request() -> None:
    original = built(*CALLS)
    for turn in original.turns:
        fork = original.fork(turn.start)
        fork.append_sampled([7], [-1.0])
        assert plain(fork.ids) == [*plain(original.ids)[: turn.start], 7]


def test_behind_a_sample_a_fork_waits_for_a_request() -> None:
    fork = built(*CALLS).fork(built(*CALLS).turns[0].end)
    with pytest.raises(TrajectoryError, match="the last request is already answered"):
        fork.append_sampled([7], [-1.0])


def test_a_request_without_an_answer_is_answered_in_both() -> None:
    original = built(*CALLS[:3])
    fork = original.fork(len(original))
    fork.append_sampled([7], [-1.0])
    original.append_sampled([8], [-1.0])
    assert (fork.ids[-1], original.ids[-1]) == (7, 8)
    assert fork.turns[:1] == original.turns[:1]


def test_where_a_turn_ends_and_the_next_one_starts_it_is_a_start() -> None:
    original = built(*CALLS[:2])
    original.request()
    original.append_sampled([7], [-1.0])
    first, second = original.turns
    assert first.end == second.start
    fork = original.fork(second.start)
    fork.append_sampled([8], [-1.0])
    assert [(turn.start, turn.end) for turn in fork.turns] == [
        (first.start, first.end),
        (second.start, second.end),
    ]


@pytest.mark.parametrize("goes_on", [(), (say(""),), CALLS[6:]])
def test_an_empty_sample_is_not_in_the_fork_at_its_place(goes_on: tuple[Call, ...]) -> None:
    original = built(*CALLS[:6])
    empty = original.turns[-1]
    original.request()
    original.append_sampled([], [])  # asked again: nothing again
    for call in goes_on:
        call(original)
    fork = original.fork(empty.start)
    assert len(fork.turns) == 2
    fork.append_sampled([7], [-1.0])
    assert (fork.turns[-1].start, fork.turns[-1].end) == (empty.start, empty.start + 1)


def test_an_empty_sample_further_on_in_the_fork_is_a_turn_of_it() -> None:
    original = built(*CALLS)
    assert len(original.fork(original.turns[-1].start).turns) == 3


def test_at_0_a_fork_is_empty_also_where_text_has_no_tokens() -> None:
    config = json.loads(word_level())
    config["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    tokenizer = abut.Tokenizer.from_str(json.dumps(config))
    original = built(say(" "), tokenizer=tokenizer)
    assert len(original) == 0
    fork = original.fork(0)
    assert plain(fork.request()) == []
    with pytest.raises(TrajectoryError, match="the trajectory is empty"):
        original.fork(0).append_sampled([1], [-1.0])


def test_a_fork_knows_which_unknown_tokens_were_cut_out_of_text() -> None:
    """The id of `<unk>` is that of a hard token, at which a later piece would get its prefix."""
    config = json.loads(word_level({"content": "<unk>", "special": True}))
    config["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    vocab = [["<unk>", 0.0], ["a", -1.0], ["▁a", -1.0]]
    config["model"] = {"type": "Unigram", "unk_id": 0, "vocab": vocab}
    tokenizer = abut.Tokenizer.from_str(json.dumps(config))

    def after(text: str, added: str) -> list[int]:
        original = abut.Trajectory(tokenizer)
        original.append_text(text, added=added)
        original.request()
        original.append_sampled([0], [-1.0])  # as sampled it is the hard token
        fork = original.fork(1)
        fork.append_text("a")
        whole = original.fork(2)
        whole.append_text("a")
        assert plain(whole.ids) == [0, 0, 2]
        return plain(fork.ids)

    assert after("한", "text") == [0, 1]
    assert after("<unk>", "parse") == [0, 2]


@pytest.mark.parametrize(
    ("at", "nearest"),
    [
        (-1, "place is 0 (the beginning)"),
        (1, "places are 0 (the beginning) and 2 (the start of turn 0)"),
        (3, "places are 2 (the start of turn 0) and 4 (the end of turn 0)"),
        (5, "places are 4 (the end of turn 0) and 7 (the start of turn 1)"),
        (8, "places are 7 (the start of turn 1) and 9 (the length)"),
        (10, "place is 9 (the length)"),
        (2**62, "place is 9 (the length)"),
    ],
)
def test_any_other_place_is_refused_with_the_nearest_ones(at: int, nearest: str) -> None:
    trajectory = abut.Trajectory(abut.Tokenizer.from_str(word_level()))
    trajectory.append_text("ab")
    trajectory.request()
    trajectory.append_sampled([1, 2], [-1.0, -1.0])
    trajectory.append_text("aba")
    trajectory.request()
    trajectory.append_sampled([], [])
    trajectory.append_text("bb")
    assert refusal(trajectory, at) == (
        f"a trajectory of 9 tokens cannot be forked at {at}: the nearest {nearest}\n"
        "hint: fork at 0, at the start or end of a turn, or at the length; a token elsewhere may "
        "be one of a longer text"
    )


@pytest.mark.parametrize("at", [None, "1", 1.0])
def test_a_place_is_a_number_of_tokens(at: Any) -> None:
    with pytest.raises(TypeError, match="at"):
        built(*CALLS).fork(at)
