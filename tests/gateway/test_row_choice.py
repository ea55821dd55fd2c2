"""Which conversation of an agent becomes the row, where a rollout has one row."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from abut import AgentResult, agent
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.row import RowChoice, chances_of, divide, fill
from abut.rollout.rollout import Rollout
from tests.kit.clients.conversation import Heard
from tests.kit.stage.agents import LOOKUP, Client, check_tree, user
from tests.kit.stage.rollouts import Stage

LONG = "a long answer that nobody goes on from, " * 4
Play = Callable[..., Heard]


@pytest.fixture
def play(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Play:
    def play(agent: Any, *says: str, **options: Any) -> Heard:
        heard = Heard(stage, monkeypatch, agent, says, **options)
        heard.check()
        return heard

    return play


@agent
async def best_of_three(endpoint: Any) -> float:
    """Go on from the second of three samples."""
    async with Client(endpoint) as client:
        picked = [await client.ask([user("pick")]) for _ in range(3)][1]
        await client.ask([user("pick"), picked, user("why?")])
    return 1.0


@agent
async def asks_again_in_the_end(endpoint: Any) -> float:
    async with Client(endpoint) as client:
        first = await client.ask([user("pick")])
        await client.ask([user("pick"), first, user("why?")])
        await client.ask([user("pick")])
    return 1.0


@agent
async def three_samples(endpoint: Any) -> float:
    async with Client(endpoint) as client:
        for _ in range(3):
            await client.ask([user("pick")])
    return 1.0


def test_a_sibling_that_nobody_continued_is_not_the_row(play: Play, stage: Stage) -> None:
    heard = play(best_of_three, LONG, "short", LONG, "so")
    text = stage.row_text(heard.rollout)
    assert "short" in text
    assert LONG not in text
    assert [branch.followed for branch in heard.rollout.branches] == [False, False]
    assert [branch.cause for branch in heard.rollout.branches] == ["repeated", "repeated"]


@pytest.mark.parametrize("branch", [None, "all", "longest", "last", "random"])
def test_nor_under_any_choice(play: Play, stage: Stage, branch: Any) -> None:
    heard = play(asks_again_in_the_end, "short", "so", LONG, branch=branch)
    assert LONG not in stage.row_text(heard.rollout)
    assert [branch.followed for branch in heard.rollout.branches] == [False]


def test_of_samples_that_all_ended_there_the_longest_is_the_row(play: Play, stage: Stage) -> None:
    heard = play(three_samples, "short", LONG, "so")
    assert LONG in stage.row_text(heard.rollout)
    assert [branch.followed for branch in heard.rollout.branches] == [True, True]


def test_a_sample_was_followed_though_the_next_call_was_refused(play: Play, stage: Stage) -> None:
    @agent
    async def goes_on_without_room(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            picked = await client.ask([user("pick")])
            await client.ask([user("pick")])
            status, _ = await client.post({"messages": [user("pick"), picked, user("why? " * 200)]})
            assert status == 400
        return 1.0

    heard = play(goes_on_without_room, "short", LONG, completion=200)
    assert "short" in stage.row_text(heard.rollout)
    assert [branch.followed for branch in heard.rollout.branches] == [False]


# ---- drawn with a seed


@agent
async def talks_much(endpoint: Any) -> float:
    """A plan, a fork of it, a sub-agent with a tool, and a sibling that is thrown away."""
    async with Client(endpoint) as client:
        plan = await client.ask([user("plan")])
        step = [user("plan"), plan, user("step")]
        done = await client.ask(step)
        await client.ask(step)
        await client.ask([*step, done, user("and then?")])
        await client.ask([user("plan"), plan, user("another step")])
        await client.ask([user("look it up")], tools=[LOOKUP])
    return 1.0


TALK = ("My plan.", "Done.", LONG, "Then that, and more of it.", "Other.", "I found it, at last.")


@pytest.fixture
def ledger(play: Play) -> Ledger:
    (ledger,) = play(talks_much, *TALK).sessions
    return ledger


def said_in_prompt(rollout: Rollout, stage: Stage) -> bytes:
    assert rollout.columns is not None
    return stage.tokenizer.decode_bytes(rollout.columns.prompt_ids)


def drawn(ledger: Ledger, seed: int, *, by_tokens: bool) -> Rollout:
    rollout = Rollout("r", 0)
    choice = RowChoice("random", by_tokens=by_tokens, seed=seed)
    fill(rollout, ledger, choice, AgentResult(1.0))
    return rollout


@pytest.mark.parametrize("by_tokens", [True, False])
def test_a_drawn_row_trains_its_own_calls_and_the_rest_is_beside_it(
    play: Play, stage: Stage, by_tokens: bool
) -> None:
    heard = play(talks_much, *TALK)
    rows = Counter()
    for seed in range(40):
        rollout = drawn(heard.sessions[0], seed, by_tokens=by_tokens)
        assert rollout.columns is not None
        check_tree(rollout, heard.sampled)
        assert rollout.sampled_tokens == int(rollout.columns.env_mask.sum())
        assert rollout.turns[0].start == len(rollout.columns.prompt_ids)
        assert rollout.step_rewards == [None] * len(rollout.turns)
        assert len(rollout.provenance) == rollout.turns[-1].end
        assert len(rollout.main_row.before) == int(b"My plan." in said_in_prompt(rollout, stage))
        rows[rollout.columns.completion_ids.tobytes()] += 1
    assert len(rows) == 3  # of four, because the thrown away sibling is never one


def test_the_same_seed_draws_the_same_row(ledger: Ledger) -> None:
    one, same = (drawn(ledger, 5, by_tokens=True).columns for _ in range(2))
    assert one is not None
    assert same is not None
    assert one.completion_ids.tolist() == same.completion_ids.tolist()


@pytest.mark.parametrize("by_tokens", [True, False])
def test_rows_are_drawn_as_often_as_their_weights_say(ledger: Ledger, by_tokens: bool) -> None:
    counted = Counter(
        drawn(ledger, seed, by_tokens=by_tokens).sampled_tokens for seed in range(2000)
    )
    tokens = [span.sampled_tokens for span in followed_spans(ledger)]
    assert len(set(tokens)) == len(tokens) == 3
    for count in tokens:
        share = count / sum(tokens) if by_tokens else 1 / len(tokens)
        assert counted[count] / 2000 == pytest.approx(share, abs=0.04)


def test_an_auxiliary_conversation_that_is_left_out_is_not_drawn(play: Play) -> None:
    @agent
    async def with_a_title(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await client.ask([user("a title")])
            await client.ask([user("work")], tools=[LOOKUP])
        return 1.0

    (ledger,) = play(with_a_title, "Title.", "Worked.").sessions
    for auxiliary, rows in (("train", 2), ("leave_out", 1)):
        names = set()
        for seed in range(20):
            rollout = Rollout("r", 0)
            choice = RowChoice("random", seed=seed, auxiliary=auxiliary)  # type: ignore[arg-type]
            fill(rollout, ledger, choice, AgentResult(1.0))
            names.add(rollout.messages[-1]["content"])
        assert len(names) == rows


def test_a_conversation_that_has_a_name_by_its_session_is_drawn_without_tools_too(
    play: Play,
) -> None:
    class Plans:
        session_header = "x-session-id"

        async def run(self, endpoint: Any, task: Any) -> float:
            async with Client(endpoint) as client:
                await client.post({"messages": [user("plan")]}, **{"x-session-id": "s1"})
                await client.ask([user("work")], tools=[LOOKUP])
            return 1.0

    (ledger,) = play(Plans(), "Planned.", LONG).sessions
    for names, rows in (({}, 1), ({"s1": "planner"}, 2)):
        said = set()
        for seed in range(20):
            rollout = Rollout("r", 0)
            choice = RowChoice("random", seed=seed, auxiliary="leave_out")
            fill(rollout, ledger, choice, AgentResult(1.0, names=names))
            said.add(rollout.messages[-1]["content"])
        assert len(said) == rows


def test_what_is_auxiliary_does_not_depend_on_the_draw(play: Play) -> None:
    """The main conversation has no tools and its sub-agent has some; a title is beside them."""

    @agent
    async def with_a_sub_agent(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await client.ask([user("a title")])
            await client.ask([user("look it up")], tools=[LOOKUP])
            await client.ask([user("work")])
        return 1.0

    (ledger,) = play(with_a_sub_agent, "Title.", "Looked.", LONG).sessions
    drawn_rows = set()
    for seed in range(20):
        rollout = drawn(ledger, seed, by_tokens=False)
        auxiliary = [b for b in rollout.branches if b.auxiliary]
        row = rollout.messages[-1]["content"]
        assert len(auxiliary) == (row != "Title."), "the main one never is, drawn or not"
        drawn_rows.add(row)
    assert len(drawn_rows) == 3


def followed_spans(ledger: Ledger) -> list[Any]:
    row, others = divide(ledger.branches, RowChoice(), AgentResult(1.0))
    return [span for span in (row, *others) if span is not None and span.followed]


# ---- the expected loss, over all rows that may be drawn

Loss = Callable[[Sequence[Sequence[float]]], float]


def mean_of_rows(rows: Sequence[Sequence[float]]) -> float:
    """TRL's `grpo` and `sapo` with one row for each rollout."""
    return sum(sum(row) / len(row) for row in rows) / len(rows)


def sum_of_tokens(rows: Sequence[Sequence[float]]) -> float:
    """`dapo` and those like it: the divisor is one for the whole batch."""
    return sum(map(sum, rows)) / 1000


def expected(rows: Sequence[Sequence[float]], weights: Sequence[int], loss: Loss) -> float:
    return sum(
        weight / sum(weights) * loss([row]) for row, weight in zip(rows, weights, strict=True)
    )


def test_by_tokens_the_expected_loss_is_that_of_all_rows(ledger: Ledger) -> None:
    spans = followed_spans(ledger)
    rng = random.Random(0)
    rows = [[rng.gauss(0, 1) for _ in range(span.sampled_tokens)] for span in spans]
    one_vote = mean_of_rows([[token for row in rows for token in row]])
    by_tokens, alike = (chances_of(spans, by_tokens=by) for by in (True, False))
    assert expected(rows, by_tokens, mean_of_rows) == pytest.approx(one_vote, rel=1e-12)
    # The controls: drawn alike, a short row's tokens count more; and so it is with rows as votes.
    assert expected(rows, alike, mean_of_rows) == pytest.approx(mean_of_rows(rows), rel=1e-12)
    assert abs(mean_of_rows(rows) - one_vote) > 0.01


def test_drawn_alike_the_expected_sum_is_a_share_of_that_of_all_rows(ledger: Ledger) -> None:
    spans = followed_spans(ledger)
    rng = random.Random(0)
    rows = [[rng.gauss(0, 1) for _ in range(span.sampled_tokens)] for span in spans]
    alike, by_tokens = (chances_of(spans, by_tokens=by) for by in (False, True))
    share = sum_of_tokens(rows) / len(rows)
    assert expected(rows, alike, sum_of_tokens) == pytest.approx(share, rel=1e-12)
    assert abs(expected(rows, by_tokens, sum_of_tokens) - share) > 1e-4
