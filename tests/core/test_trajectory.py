"""Trajectories: after every step, native and reference hold the same tokens, masks and seams."""

import json
import math
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import abut
from abut.errors import TokenizerError, TrajectoryError
from abut.parts import Content, Part, Scaffold
from tests import reference
from tests.kit.data.oracle import Trio, outcome, plain, real, tokens_of
from tests.kit.data.strategies_text import parts, texts, trios
from tests.kit.data.tokenizers_made import REAL, word_level
from tests.reference.edge import Edge

provenances = st.sampled_from(["prompt", "env", "close"])
logprobs = st.floats(-50, 0, width=32)
# Its name, what it was given, and how many tokens there were then.
Call = tuple[str, tuple[Any, ...], dict[str, Any], int]


class Branch:
    """One conversation on both sides. A fork has a third: its calls once more, from scratch."""

    def __init__(self, *sides: Any) -> None:
        self.sides = sides
        self.received: list[int] = []  # what the engine got or gave: a prefix for ever
        self.requests: list[tuple[Any, list[int]]] = []  # what it was given, and what stood there
        # Not once sampled bytes spell a control token that nothing else can. How far from them a
        # seam is judged depends on where a side looks for an anchor; tokens never do.
        self.is_writable = True
        self.calls: list[Call] = []

    def all(self, name: str, *args: Any, **options: Any) -> Any:
        """Makes the call on all sides; returns the answer, which is the same."""
        answers = [
            outcome(lambda side=side: getattr(side, name)(*args, **options)) for side in self.sides
        ]
        if not self.is_writable:
            answers = [(kind, tokens_written(value)) for kind, value in answers]
        for answer in answers[1:]:
            assert answers[0] == answer
        if answers[0][0] == "value":
            self.calls.append((name, args, options, len(self.sides[0])))
        return answers[0]

    def places(self) -> set[int]:
        return {0, len(self.sides[0]), *chain.from_iterable(self.sides[1].turns)}

    def fork(self, at: int, three: Trio) -> "Branch":
        scratch = Branch(abut.Trajectory(three.native))
        for name, args, options, _ in self.calls_before(at):
            scratch.all(name, *args, **options)
        fork = Branch(*(side.fork(at) for side in self.sides[:2]), *scratch.sides)
        fork.received, fork.is_writable = self.received[:at], self.is_writable
        fork.calls = scratch.calls
        return fork

    def calls_before(self, at: int) -> list[Call]:
        """Those that make what stands at a place: where a turn starts, up to its request."""
        if at == 0:
            return []
        samples = [
            (index, before[3], call[3])
            for index, (before, call) in enumerate(pairwise(self.calls), start=1)
            if call[0] == "append_sampled"
        ]
        starts = [index for index, start, _ in samples if start == at]
        ends = [index + 1 for index, _, end in samples if end == at]
        whole = [len(self.calls)] if at == len(self.sides[0]) else []
        return self.calls[: [*starts[:1], *whole, *ends][0]]


class BothTrajectories(RuleBasedStateMachine):
    """The same calls on both sides; each answer and all tokens must be equal, of all branches."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.three: Trio = data.draw(self.tokenizers())
        native, plain_python = self.three.native, self.three.reference
        self.branch = Branch(abut.Trajectory(native), reference.Trajectory(plain_python))
        self.branches = [self.branch]

    def tokenizers(self) -> st.SearchStrategy[Trio]:
        return trios()

    @rule(text=texts, added=st.sampled_from(["parse", "text", "raise"]), provenance=provenances)
    def append_text(self, text: str, added: str, provenance: str) -> None:
        self.branch.all("append_text", text, added=added, provenance=provenance)

    @rule(parts=parts, provenance=provenances)
    def append_parts(self, parts: list[Part], provenance: str) -> None:
        self.branch.all("append_parts", parts, provenance=provenance)

    @rule()
    def request(self) -> None:
        _, ids = self.branch.all("request")
        self.branch.received = ids
        self.branch.requests.append((self.branch.sides[0].request(), ids))

    @rule(text=texts, data=st.data(), closed=st.booleans(), asked=st.booleans())
    def append_sampled(self, text: str, data: st.DataObject, closed: bool, asked: bool) -> None:
        """Canonical tokens of a text, or any ids at all; often with a hard token at the end."""
        branch = self.branch
        if asked:
            self.request()
        size = self.three.native.vocab_size
        any_ids = st.lists(st.integers(0, size - 1), max_size=5)
        canonical = outcome(lambda: self.three.reference.encode(text))
        ids = canonical[1] if canonical[0] == "value" else []
        ids = data.draw(st.sampled_from([ids, ids[1:], ids[:-1]]) | any_ids)
        if closed and self.three.reference.hard:
            ids = [*ids, self.three.reference.hard[0].id]
        branch.is_writable &= has_canonical_tokens(self.three, [*branch.received[-8:], *ids])
        values = data.draw(st.lists(logprobs, min_size=len(ids), max_size=len(ids)))
        if branch.all("append_sampled", ids, values)[0] == "value":
            branch.received = [*branch.received, *ids]

    # Else most forks would be those of empty trajectories: turns are rare.
    @precondition(lambda self: self.branch.sides[1].turns)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """At any place where it can be; the fork and the original both may go on."""
        at = data.draw(st.sampled_from(sorted(self.branch.places())))
        self.branches = [*self.branches[-3:], self.branch.fork(at, self.three)]
        self.branch = data.draw(st.sampled_from(self.branches))

    @rule(at=st.integers(-2, 40))
    def fork_elsewhere(self, at: int) -> None:
        if at not in self.branch.places():
            texts = []
            for side in self.branch.sides:
                with pytest.raises(TrajectoryError) as caught:
                    side.fork(at)
                texts.append(str(caught.value))
            assert len(set(texts)) == 1

    @invariant()
    def hold_the_same_tokens(self) -> None:
        for branch in getattr(self, "branches", []):
            tokens = tokens_of(branch.sides[0])
            for side in branch.sides[1:]:
                assert tokens == tokens_of(side)
            assert tokens["ids"][: len(branch.received)] == branch.received
            finite = [int(value is not None) for value in tokens["logprobs"]]
            assert finite == tokens["sampled_mask"]

    @invariant()
    def leave_every_request_as_it_was(self) -> None:
        for branch in getattr(self, "branches", []):
            for request, ids in branch.requests:
                assert request.tolist() == ids

    @invariant()
    def give_the_same_columns(self) -> None:
        names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
        for branch in getattr(self, "branches", []):
            rows = [
                outcome(lambda side=side: [plain(getattr(side.columns(), n)) for n in names])
                for side in branch.sides
            ]
            for row in rows[1:]:
                assert rows[0] == row


class BothQwen3(BothTrajectories):
    def tokenizers(self) -> st.SearchStrategy[Trio]:
        return st.just(real("qwen3"))


class BothMistral(BothTrajectories):
    def tokenizers(self) -> st.SearchStrategy[Trio]:
        return st.just(real("mistral_v3"))


def has_canonical_tokens(three: Trio, ids: list[int]) -> bool:
    side = three.reference
    parts = [kind(text.decode(errors="ignore")) for kind, text in side.parts_of_ids(ids)]
    return bool(outcome(lambda: side.tokens(parts, Edge.CONTINUE))[0] == "value")


def tokens_written(answer: Any) -> Any:
    """Of a seam its tokens, without the verdict; any other answer as it is."""
    return (answer["drop"], answer["ids"]) if isinstance(answer, dict) else answer


STEPS = settings(stateful_step_count=15, deadline=None)
TestBothTrajectories = BothTrajectories.TestCase
TestBothTrajectories.settings = STEPS
TestBothQwen3 = BothQwen3.TestCase
TestBothQwen3.settings = STEPS
TestBothMistral = BothMistral.TestCase
TestBothMistral.settings = STEPS


turns = st.tuples(parts, st.lists(st.integers(0, 30), max_size=3), st.booleans())


@given(trios(), st.lists(turns, min_size=1, max_size=3), st.lists(parts, max_size=3), st.data())
def test_native_forks_as_the_reference_does_and_as_from_scratch(
    three: Trio,
    turns: list[tuple[list[Part], list[int], bool]],
    behind: list[list[Part]],
    data: st.DataObject,
) -> None:
    """As the machines do it, with a turn in every conversation, which most of theirs lack."""
    branch = Branch(abut.Trajectory(three.native), reference.Trajectory(three.reference))
    hard = [token.id for token in three.reference.hard[:1]]
    for prompt, ids, closed in turns:
        branch.all("append_parts", [*prompt, Content("a")])
        branch.received = branch.all("request")[1]
        ids = [id % three.native.vocab_size for id in ids] + hard * closed
        branch.is_writable &= has_canonical_tokens(three, [*branch.received[-8:], *ids])
        branch.all("append_sampled", ids, [-1.0] * len(ids))
    for part in behind[:1]:
        branch.all("append_parts", part)
    before = [tokens_of(side) for side in branch.sides]
    at = data.draw(st.sampled_from(sorted(branch.places() - {0}) or [0]))
    fork = branch.fork(at, three)
    again = branch.fork(at, three)  # a sample in one, text in the other
    fork.all("append_sampled", hard, [-1.0] * len(hard))
    for part in behind:
        again.all("append_parts", part)
    for one in (fork, again):
        tokens = [tokens_of(side) for side in one.sides]
        assert tokens[0] == tokens[1] == tokens[2]
    assert before == [tokens_of(side) for side in branch.sides]


# --- text that nobody has seen is one text


@given(trios(), st.lists(parts))
def test_text_is_tokenized_as_a_whole_however_it_arrives(
    three: Trio, arrivals: list[list[Part]]
) -> None:
    trajectory = abut.Trajectory(three.native)
    so_far: list[Part] = []
    for arrival in arrivals:
        before = plain(trajectory.ids)
        so_far = [*so_far, *arrival]
        kind, expected = outcome(lambda whole=so_far: three.native.encode_parts(whole))
        assume(kind == "value")
        seam = trajectory.append_parts(arrival)
        assert plain(trajectory.ids) == expected
        assert before[: len(before) - seam.drop] + plain(seam.ids) == expected


@REAL
def test_naive_concatenation_would_be_caught(name: str) -> None:
    """The negative control: tokens that merge across an append are not simply put side by side."""
    three = real(name)
    trajectory = abut.Trajectory(three.native)
    trajectory.append_text("Hel")
    seam = trajectory.append_text("lo there")
    naive = [*three.reference.encode("Hel"), *three.reference.encode("lo there")]
    assert plain(trajectory.ids) != naive
    assert plain(trajectory.ids) == three.reference.encode("Hello there")
    assert seam.kind == "merged"
    assert seam.drop == 1


# --- what is frozen or sampled


def asked(name: str, prompt: str) -> abut.Trajectory:
    trajectory = abut.Trajectory(real(name).native)
    trajectory.append_text(prompt, added="parse", provenance="prompt")
    trajectory.request()
    return trajectory


def test_a_merge_with_a_sampled_token_is_reported_and_never_applied() -> None:
    tokenizer = real("qwen3").native
    trajectory = asked("qwen3", "<|im_start|>assistant\n")
    newline, double_newline = 198, 271
    seam = trajectory.append_sampled([newline, 9707], [-1.0, -0.5])
    assert (seam.kind, seam.exact, seam.drop) == ("merged", False, 0)
    assert plain(seam.ids) == [newline, 9707]
    assert plain(seam.canonical_ids) == [double_newline, 9707]
    assert plain(trajectory.ids)[-2:] == [newline, 9707]
    assert tokenizer.decode(trajectory.ids) == "<|im_start|>assistant\n\nHello"


def test_a_merge_begins_at_the_first_token_that_differs() -> None:
    # After signs the mark goes with them, and so does the `<` behind it; alone it ends a word.
    words = r"'\p{M}+|<\p{L}+|[^\p{L}]+|\p{L}+"
    vocab = {text: id for id, text in enumerate(["<", "|", ">", "'", "\u0369", "n", "<n"])}
    split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
    model = {"type": "BPE", "vocab": vocab, "merges": [["<", "n"]]}
    three = Trio(json.dumps({"pre_tokenizer": split, "model": model}))
    for trajectory in abut.Trajectory(three.native), reference.Trajectory(three.reference):
        trajectory.append_text("|>")
        trajectory.request()
        seam = trajectory.append_text("'\u0369<n>")
        merge = seam.merge
        assert plain(seam.ids) == [vocab[text] for text in ("'", "\u0369", "<n", ">")]
        assert plain(seam.canonical_ids) == [vocab[text] for text in "<n>"]
        assert (plain(merge.left_ids), plain(merge.right_ids)) == ([], [vocab["<n"]])
        assert plain(merge.merged_ids) == [vocab["<"], vocab["n"]]
        assert (merge.left_text, merge.right_text) == ("", "<n")


def test_text_after_a_hard_stop_token_is_a_barrier() -> None:
    trajectory = asked("qwen3", "<|im_start|>assistant\n")
    tokenizer = real("qwen3").native
    im_end = tokenizer.token_to_id("<|im_end|>")
    trajectory.append_sampled([9707, im_end], [-1.0, -0.5])
    seam = trajectory.append_text("\nnext")
    assert (seam.kind, seam.exact, seam.canonical_ids) == ("barrier", True, None)
    assert plain(seam.ids) == plain(tokenizer.encode("\nnext"))


def test_text_after_a_cut_sample_gets_no_prefix_of_its_own() -> None:
    trajectory = asked("mistral_v3", "[INST] hi[/INST]")
    tokenizer = real("mistral_v3").native
    trajectory.append_sampled([tokenizer.token_to_id("▁Hel")], [-1.0])
    seam = trajectory.append_text("lo")
    assert tokenizer.decode(seam.ids) == "lo"
    assert seam.kind == "merged"
    assert plain(seam.canonical_ids) == [tokenizer.token_to_id("▁Hello")]


def test_unknown_text_is_no_barrier_though_its_id_is_that_of_a_hard_token() -> None:
    config = json.loads(word_level({"content": "<unk>", "special": True}))
    config["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    vocab = [["<unk>", 0.0], ["a", -1.0], ["▁a", -1.0]]
    config["model"] = {"type": "Unigram", "unk_id": 0, "vocab": vocab}
    three = Trio(json.dumps(config))
    assert three.native.profile()["hard_tokens"] == ["<unk>"]
    trajectory = abut.Trajectory(three.native)
    trajectory.append_text("한")
    trajectory.request()
    trajectory.append_text("a")
    assert plain(trajectory.ids) == three.reference.encode("한a") == [0, 1]


def test_a_sample_that_ends_inside_a_character_has_no_canonical_tokens() -> None:
    tokenizer = real("qwen3").native
    trajectory = asked("qwen3", "<|im_start|>assistant\n")
    half = next(id for id in range(1000) if tokenizer.decode_bytes([id]) == b"\xf0")
    trajectory.append_sampled([half], [-1.0])
    seam = trajectory.append_text("x")
    assert (seam.kind, seam.exact, seam.canonical_ids) == ("merged", False, None)


def test_a_sample_that_spells_a_control_token_in_bytes_has_no_canonical_tokens() -> None:
    vocab = [["<unk>", -1.0], ["<0x61>", -1.0], ["a", -1.0], ["b", -1.0]]
    model = {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": vocab}
    control = {"id": 2, "content": "a", "special": True, "normalized": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    three = Trio(json.dumps({"model": model, "added_tokens": [control | flags]}))
    for trajectory in abut.Trajectory(three.native), reference.Trajectory(three.reference):
        trajectory.append_text("b")
        trajectory.request()
        seam = trajectory.append_sampled([1], [-1.0])
        assert (seam.kind, seam.exact, seam.canonical_ids) == ("merged", False, None)
        assert plain(trajectory.ids) == [3, 1]
        with pytest.raises(TokenizerError):
            trajectory.append_text("a")


def test_arrays_have_the_documented_types_and_are_copies() -> None:
    trajectory = asked("qwen3", "<|im_start|>")
    trajectory.append_sampled(np.array([9707]), np.array([-1.0], dtype=np.float32))
    dtypes = {
        "ids": np.int64,
        "sampled_mask": np.uint8,
        "logprobs": np.float32,
        "provenance": np.uint8,
    }
    for name, dtype in dtypes.items():
        array = getattr(trajectory, name)
        assert (array.dtype, array.shape) == (dtype, (2,)), name
    assert math.isnan(trajectory.logprobs[0])
    trajectory.ids[0] = 7
    assert trajectory.ids[0] != 7
    assert [(turn.start, turn.end) for turn in trajectory.turns] == [(1, 2)]


def test_provenance_says_who_wrote_each_token() -> None:
    trajectory = abut.Trajectory(abut.Tokenizer.from_str(word_level("<e>")))
    trajectory.append_parts([Scaffold("<e>"), Content("a")], provenance="prompt")
    trajectory.request()
    trajectory.append_sampled([1], [-1.0])
    trajectory.append_parts([Scaffold("<e>")], provenance="close")
    trajectory.append_parts([Scaffold("<e>"), Content("b")], provenance="env")
    names = [abut.trajectory.PROVENANCE[code] for code in trajectory.provenance]
    assert names == ["scaffold", "prompt", "sampled", "close", "scaffold", "env"]


# --- errors; nothing is written then


def refused(trajectory: abut.Trajectory, ids: Any, values: Any) -> str:
    before = tokens_of(trajectory)
    with pytest.raises((TrajectoryError, TokenizerError)) as caught:
        trajectory.append_sampled(ids, values)
    assert tokens_of(trajectory) == before
    return str(caught.value)


def test_a_sample_needs_a_request_directly_before_it() -> None:
    hint = "hint: send request() to the engine, then append the sample, then the reply"
    trajectory = abut.Trajectory(abut.Tokenizer.from_str(word_level()))
    assert refused(trajectory, [1], [-1.0]) == (
        f"append_sampled needs a request() directly before it: the trajectory is empty\n{hint}"
    )
    trajectory.append_text("a")
    assert "directly before it" in refused(trajectory, [1], [-1.0])
    trajectory.request()
    trajectory.append_sampled([1], [-1.0])
    assert "the last request is already answered" in refused(trajectory, [1], [-1.0])
    trajectory.request()
    trajectory.append_text("b")
    assert "text was appended after the last request" in refused(trajectory, [1], [-1.0])


def test_a_sample_has_one_logprob_for_each_id() -> None:
    trajectory = abut.Trajectory(abut.Tokenizer.from_str(word_level()))
    trajectory.append_text("a")
    trajectory.request()
    assert refused(trajectory, [1, 2], [-1.0]) == (
        "turn 0 has 2 sampled ids but 1 logprobs\nhint: pass one logprob per sampled id, the "
        "stop token included"
    )


@pytest.mark.parametrize(
    ("value", "named"), [(math.nan, "NaN"), (None, "NaN"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_a_logprob_that_is_not_finite_is_named_with_its_token(
    value: float | None, named: str
) -> None:
    trajectory = abut.Trajectory(abut.Tokenizer.from_str(word_level()))
    trajectory.append_text("a")
    trajectory.request()
    assert refused(trajectory, [1, 2], [-1.0, value]) == (
        f"turn 0: sampled token 1 (id 2) has logprob {named}, which is not finite\n"
        "hint: ask the engine for the logprob of each sampled token, after temperature and filters"
    )
    trajectory.append_sampled([1, 2], [-1.0, 1e-4])  # the request is still open


def test_a_sampled_id_outside_the_vocabulary_is_refused() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level())
    trajectory = abut.Trajectory(tokenizer)
    trajectory.append_text("a")
    trajectory.request()
    for id in (-1, tokenizer.vocab_size, 2**40):
        message = refused(trajectory, [1, id], [-1.0, -1.0])
        assert message.startswith(f"token 1 has id {id}, which is outside the vocabulary")


def test_text_that_cannot_be_encoded_leaves_the_trajectory_as_it_was() -> None:
    trajectory = abut.Trajectory(abut.Tokenizer.from_str(word_level("a")))
    trajectory.append_text("b")
    before = tokens_of(trajectory)
    with pytest.raises(TokenizerError, match="no other way to write"):
        trajectory.append_text("ba")
    assert tokens_of(trajectory) == before
    trajectory.append_text("c")
    assert len(trajectory) == 2


def test_only_text_can_have_the_provenance_of_text() -> None:
    trajectory = abut.Trajectory(abut.Tokenizer.from_str(word_level()))
    with pytest.raises(ValueError, match='expected "prompt", "env" or "close"'):
        trajectory.append_text("a", provenance="sampled")
