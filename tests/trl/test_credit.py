"""Advantages of turns: TRL's own where it can be, the same for any order, and each error's text."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abut.trl.credit import (
    Credit,
    Credited,
    Returns,
    ScoredConversation,
    ScoredRollout,
    ScoredTurn,
    checked_credit,
    credited,
    token_advantages,
)
from abut.trl.returns import Scale, increments
from scripts.draw_credit import picture
from tests.kit.checkout import ROOT

SCALES: tuple[Scale, ...] = ("none", "group", "batch")


def conversation(
    *rewards: float | None,
    name: str | None = None,
    own: float | None = None,
    before: Sequence[float | None] = (),
) -> ScoredConversation:
    return ScoredConversation(name, own, [ScoredTurn(2, reward) for reward in rewards], before)


def rollout(
    reward: float | None, *conversations: ScoredConversation, advantage: float = 0.0
) -> ScoredRollout:
    return ScoredRollout("r", reward, advantage, list(conversations) or [conversation(None)])


def of(
    rollouts: Sequence[ScoredRollout],
    credit: Credit = Returns(),  # noqa: B008
    *,
    group: int | None = None,
    scale: Scale = "none",
) -> Credited:
    return credited(credit, rollouts, num_generations=group or len(rollouts), scale_rewards=scale)


def flat(found: Credited) -> np.ndarray:
    return np.array([a for r in found.advantages for c in r for a in c])


def of_trl(rewards: Sequence[float | None], group: int, scale: Scale) -> list[float]:
    """Return the advantages that `GRPOTrainer` computes of rewards; None is no score."""
    numbers = np.array([math.nan if r is None else r for r in rewards], float)
    found = []
    for k, reward in enumerate(numbers):
        of_group = numbers[k // group * group :][:group]
        among = of_group if scale == "group" else numbers
        scored = among[~np.isnan(among)]
        difference = reward - np.nanmean(of_group) if not np.isnan(reward) else 0.0
        std = np.std(scored, ddof=1) if len(scored) > 1 else 0.0
        found.append(difference / (std + 1e-4) if scale != "none" else difference)
    return found


numbers = st.integers(-40, 40).map(lambda k: k / 8)
scores = st.none() | numbers
conversations = st.builds(
    lambda rewards, name, before: conversation(*rewards, name=name, before=before),
    st.lists(scores, min_size=1, max_size=4),
    st.sampled_from([None, "judge"]),
    st.lists(scores, max_size=2),
)
rollouts = st.builds(
    lambda reward, several: rollout(reward, *several),
    scores,
    st.lists(conversations, min_size=1, max_size=3),
)


# ---- values


def test_a_turn_is_compared_with_the_others_at_that_turn() -> None:
    three = [
        rollout(3.0, conversation(1.0, 2.0)),  # returns 3, 2
        rollout(1.0, conversation(None, None, None)),  # 1, 1, 1
        rollout(0.0, conversation(None)),  # 0, and still 0 after its end
    ]
    found = of(three).advantages
    twothirds = 2 / 3
    assert found[0] == [[twothirds * (3 - 0.5), twothirds * (2 - 0.5)]]
    assert found[1] == pytest.approx(
        np.array([[twothirds * (1 - 1.5), twothirds * (1 - 1), twothirds * (1 - 1)]])
    )
    assert found[2] == [[twothirds * (0 - 2)]]


def test_a_discount_counts_the_turns_between() -> None:
    two = [rollout(8.0, conversation(None, None, None)), rollout(0.0, conversation(None))]
    assert of(two, Returns(0.5)).advantages[0] == [[1.0, 2.0, 4.0]]
    assert of(two, Returns(0)).advantages[0] == [[0.0, 0.0, 4.0]]


def test_rewards_of_turns_divide_the_reward_and_add_nothing() -> None:
    two = [rollout(1.0, conversation(0.75, None)), rollout(0.0, conversation(None))]
    assert of(two).advantages[0] == [[0.5, 0.125]]
    two = [rollout(1.0, conversation(5.0, None)), rollout(0.0, conversation(None))]
    assert of(two).advantages[0] == [[0.5, -2.0]]


def test_a_fork_has_returns_from_its_own_turns_on() -> None:
    main, fork = conversation(1.0, None), conversation(None, before=[1.0])
    two = [rollout(3.0, main, fork), rollout(0.0, conversation(None))]
    assert of(two).advantages[0] == [[1.5, 1.0], [1.0]]


def test_names_have_baselines_of_their_own() -> None:
    both = [conversation(None), conversation(None, name="judge")]
    three = [rollout(1.0, *both), rollout(0.0, *both), rollout(5.0)]
    found = of(three)
    assert found.advantages[0] == pytest.approx(np.array([[2 / 3 * (1 - 2.5)], [0.5]]))
    assert found.alone == [False, False, False]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("credit", [None, Returns(0.5), lambda group: given_zeros(group)])
def test_a_conversation_with_a_reward_of_its_own_is_judged_by_that_alone(
    credit: Credit, scale: Scale
) -> None:
    rewards = [(1.0, 0.25), (0.0, None), (None, 1.0), (0.5, -1.0)]
    group = [
        rollout(
            reward,
            conversation(None, None),
            conversation(None, None, None, name="judge", own=own),
            advantage=7.0,
        )
        for reward, own in rewards
    ]
    found = of(group, credit, scale=scale)
    expected = of_trl([own for _, own in rewards], 4, scale)
    for k, (_, own) in enumerate(rewards):
        if own is not None:
            assert found.advantages[k][1] == pytest.approx([expected[k]] * 3)


def given_zeros(group: Sequence[ScoredRollout]) -> list[Any]:
    return [[[0.0] * len(c.turns) for c in r.conversations] for r in group]


def test_two_players_have_two_baselines() -> None:
    games = [
        rollout(
            None, conversation(None, name="a", own=a), conversation(None, None, name="b", own=-a)
        )
        for a in (1.0, -1.0, 1.0, -1.0)
    ]
    found = of(games, None).advantages
    assert found == [[[a], [-a, -a]] for a in (1.0, -1.0, 1.0, -1.0)]


def test_without_credit_each_turn_has_the_trainers_advantage() -> None:
    two = [
        rollout(1.0, conversation(None, 0.5), conversation(None), advantage=0.25),
        rollout(None, conversation(None), advantage=0.0),
    ]
    assert of(two, None) == Credited([[[0.25, 0.25], [0.25]], [[0.0]]], [False, False])


def test_a_failed_rollout_with_a_reward_counts_without_a_turn() -> None:
    two = [rollout(1.0, conversation(None)), rollout(0.0, ScoredConversation(None, None, []))]
    assert of(two).advantages == [[[0.5]], [[]]]
    assert of(two, scale="group").advantages[0][0] == pytest.approx(
        of_trl([1.0, 0.0], 2, "group")[:1]
    )


def test_a_main_row_without_turns_counts_for_nothing_beside_others() -> None:
    untrained = ScoredConversation(None, None, [])
    two = [rollout(1.0, untrained, conversation(0.75, None)), rollout(0.0)]
    assert of(two).advantages == [[[], [0.5, 0.125]], [[-0.5]]]


def test_a_function_gives_the_advantages_themselves() -> None:
    seen = []

    def by_hand(group: Sequence[ScoredRollout]) -> list[Any]:
        seen.append(group)
        return [[[np.array([1.0, 2.0]), 3]], [[4.0]]]

    group = [
        rollout(1.0, conversation(None, 0.5), advantage=9.0),
        rollout(None, conversation(None)),
    ]
    found = of(group * 2, by_hand, group=2, scale="group").advantages
    assert [list(one) for one in seen] == [group, group]
    assert found[1] == [[0.0]]  # no score, whatever the function says
    first, second = found[0][0]
    assert token_advantages(group[0].conversations[0].turns, [first, second]).tolist() == [
        1,
        2,
        3,
        3,
    ]


def test_a_function_is_not_asked_about_conversations_without_turns() -> None:
    empty = ScoredConversation(None, None, [])
    failed, scored = rollout(None, empty), rollout(0.0, empty)
    untrained = rollout(1.0, empty, conversation(0.5, None, name="judge"), advantage=2.0)
    whole = rollout(0.5, conversation(None), advantage=3.0)
    seen = []

    def by_last_turn(group: Sequence[ScoredRollout]) -> list[Any]:
        seen.extend([conversation.name for conversation in r.conversations] for r in group)
        return [
            [[0.0] * (len(c.turns) - 1) + [r.advantage] for c in r.conversations] for r in group
        ]

    found = of([failed, untrained, scored, whole], by_last_turn)
    assert seen == [[], ["judge"], [], [None]]
    assert found.advantages == [[[]], [[], [0.0, 2.0]], [[]], [[3.0]]]
    with pytest.raises(ValueError, match="for each conversation, 0 in total, got 1"):
        of([failed], lambda group: [[[]]])


def test_tokens_have_the_advantage_of_their_turn() -> None:
    turns = [ScoredTurn(2), ScoredTurn(0), ScoredTurn(1)]
    found = token_advantages(turns, [0.5, 1.0, np.array([-1.0])])
    assert found.tolist() == [0.5, 0.5, -1.0]
    assert found.dtype == np.float64
    assert token_advantages([], []).shape == (0,)


def test_a_running_score_is_paid_by_its_increments() -> None:
    assert increments([0.25, None, 1.0, 0.5]) == [0.25, None, 0.75, -0.5]
    assert increments([None, None]) == [None, None]


def test_the_picture_in_the_docs_shows_what_the_code_computes() -> None:
    assert picture() == (ROOT / "docs" / "how-to" / "credit.svg").read_text(encoding="utf-8")


# ---- properties


@given(
    st.lists(st.tuples(scores, st.integers(1, 4), st.integers(1, 3)), min_size=6, max_size=6),
    st.sampled_from([1, 2, 3, 6]),
    st.sampled_from(SCALES),
)
def test_paid_at_the_end_it_is_trls_advantage_whatever_the_lengths(
    drawn: list[tuple[float | None, int, int]], group: int, scale: Scale
) -> None:
    batch = [
        rollout(reward, *[conversation(*[None] * (turns + k)) for k in range(several)])
        for reward, turns, several in drawn
    ]
    found = of(batch, group=group, scale=scale).advantages
    for advantage, of_rollout in zip(
        of_trl([reward for reward, _, _ in drawn], group, scale), found, strict=True
    ):
        for of_conversation in of_rollout:
            assert of_conversation == pytest.approx([advantage] * len(of_conversation), abs=1e-9)


@given(st.lists(rollouts, min_size=1, max_size=5), st.sampled_from(SCALES), st.randoms())
def test_the_order_in_a_group_does_not_matter(
    group: list[ScoredRollout], scale: Scale, random: Any
) -> None:
    order = random.sample(range(len(group)), len(group))
    found = of(group, Returns(0.5), scale=scale)
    other = of([group[k] for k in order], Returns(0.5), scale=scale)
    assert other.alone == [found.alone[k] for k in order]
    for k, of_rollout in zip(order, other.advantages, strict=True):
        for one, two in zip(found.advantages[k], of_rollout, strict=True):
            assert two == pytest.approx(one, abs=1e-9)


@given(st.lists(rollouts, min_size=1, max_size=4), st.randoms())
def test_the_order_of_conversations_does_not_matter(
    group: list[ScoredRollout], random: Any
) -> None:
    orders = [random.sample(range(len(r.conversations)), len(r.conversations)) for r in group]
    mixed = [
        rollout(r.reward, *[r.conversations[j] for j in order])
        for r, order in zip(group, orders, strict=True)
    ]
    found, other = of(group, scale="group").advantages, of(mixed, scale="group").advantages
    for k, order in enumerate(orders):
        for at, j in enumerate(order):
            assert other[k][at] == pytest.approx(found[k][j], abs=1e-9)


def times(factor: float, one: ScoredRollout) -> ScoredRollout:
    def scaled(reward: float | None) -> float | None:
        return None if reward is None else factor * reward

    return rollout(
        scaled(one.reward),
        *(
            ScoredConversation(
                c.name,
                scaled(c.reward),
                [ScoredTurn(turn.tokens, scaled(turn.reward)) for turn in c.turns],
                [scaled(reward) for reward in c.before],
            )
            for c in one.conversations
        ),
    )


@given(st.lists(rollouts, min_size=1, max_size=4), st.sampled_from([0.25, 2.0, 1024.0]))
def test_without_scaling_advantages_are_as_large_as_rewards(
    group: list[ScoredRollout], factor: float
) -> None:
    larger = flat(of([times(factor, one) for one in group]))
    assert larger.tolist() == (factor * flat(of(group))).tolist()  # powers of two are exact


@given(st.lists(rollouts, min_size=2, max_size=4), st.sampled_from(["group", "batch"]))
def test_scaling_takes_the_size_of_rewards_away(group: list[ScoredRollout], scale: Scale) -> None:
    large, larger = (
        flat(of([times(factor, one) for one in group], scale=scale)) for factor in (2**20, 2**21)
    )
    assert larger == pytest.approx(large, rel=1e-6, abs=1e-9)


@given(st.lists(rollouts, min_size=1, max_size=4), st.sampled_from(SCALES))
def test_a_turn_without_a_reward_is_paid_nothing(group: list[ScoredRollout], scale: Scale) -> None:
    def filled(c: ScoredConversation) -> ScoredConversation:
        turns = [ScoredTurn(turn.tokens, turn.reward or 0.0) for turn in c.turns]
        return ScoredConversation(c.name, c.reward, turns, [reward or 0.0 for reward in c.before])

    zeros = [rollout(r.reward, *map(filled, r.conversations)) for r in group]
    assert of(zeros, Returns(0.5), scale=scale) == of(group, Returns(0.5), scale=scale)


@given(rollouts, st.lists(rollouts, max_size=3), st.sampled_from(SCALES))
def test_a_rollout_that_is_alone_has_the_advantage_0(
    lone: ScoredRollout, others: list[ScoredRollout], scale: Scale
) -> None:
    unscored = [rollout(None, *other.conversations) for other in others]
    found = of([lone, *unscored], scale=scale)
    assert not flat(found).any()
    assert found.alone[0] is (lone.reward is not None)
    assert not any(found.alone[1:])


@given(
    st.lists(rollouts, min_size=2, max_size=2),
    st.lists(rollouts, min_size=2, max_size=2),
    st.sampled_from(["none", "group"]),
)
def test_groups_do_not_meet_unless_the_batch_scales(
    one: list[ScoredRollout], two: list[ScoredRollout], scale: Scale
) -> None:
    together = of([*one, *two], group=2, scale=scale)
    assert flat(together) == pytest.approx(
        np.concatenate([flat(of(one, scale=scale)), flat(of(two, scale=scale))]), abs=1e-12
    )


@given(st.floats(-1e9, 1e9), st.integers(2, 8), st.sampled_from(SCALES))
def test_equal_rewards_leave_exactly_nothing(reward: float, count: int, scale: Scale) -> None:
    assert not flat(of([rollout(reward)] * count, scale=scale)).any()


# ---- errors

SHAPE = (
    "\n"
    "hint: return nested lists, indexed by rollout, conversation (the main one first) and own "
    "turn; each value is a finite number, or an array with one for each sampled token of the turn"
)
GROUP = [
    rollout(1.0, conversation(None, None), conversation(None, name="judge")),
    rollout(0.0, conversation(None)),
]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            None,
            "credit: expected one value for each rollout of the group, 2 in total, got a NoneType",
        ),
        (
            [[[1, 1], [1]]],
            "credit: expected one value for each rollout of the group, 2 in total, got 1",
        ),
        (
            [[[1, 1], [1]], 0.0],
            "credit for rollout 'r': expected one value for each conversation, 1 in total, got a "
            "float",
        ),
        (
            [[[1, 1]], [[1]]],
            "credit for rollout 'r': expected one value for each conversation, 2 in total, got 1",
        ),
        (
            [[[1, 1], [1, 1]], [[1]]],
            "credit for rollout 'r', conversation 1 ('judge'): expected one value for each own "
            "turn, 1 in total, got 2",
        ),
        (
            [[[1, [1, 2, 3]], [1]], [[1]]],
            "credit for rollout 'r', conversation 0, turn 1: the array has shape (3,), but the "
            "turn has 2 sampled tokens",
        ),
        (
            [[[1, None], [1]], [["x"]]],
            "credit for rollout 'r', conversation 0, turn 1: None is not finite",
        ),
        (
            [[[1, 1], ["x"]], [[1]]],
            "credit for rollout 'r', conversation 1 ('judge'), turn 0: 'x' is not a number",
        ),
        (
            [[[1, 1], [[1, math.inf]]], [[1]]],
            "credit for rollout 'r', conversation 1 ('judge'), turn 0: [1, inf] is not finite",
        ),
    ],
)
def test_what_a_function_returns_is_checked(returned: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message + SHAPE)}$"):
        of(GROUP, lambda group: returned)


def test_what_a_function_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        of(GROUP, lambda group: 1 / 0)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("one", "what"),
    [
        (rollout(math.inf), "conversation 0: the reward is inf"),
        (
            rollout(1.0, conversation(None, name="a", own=math.nan)),
            "conversation 0 ('a'): the conversation's reward is nan",
        ),
        (
            rollout(1.0, conversation(None), conversation(-math.inf, before=[None])),
            "conversation 1: the reward of turn 1 is -inf",
        ),
    ],
)
def test_a_reward_that_is_not_finite_is_an_error(one: ScoredRollout, what: str) -> None:
    message = f"rollout 'r', {what}\nhint: use None where there is no score"
    for credit in (None, Returns()):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            of([one], credit)


@pytest.mark.parametrize("discount", [-0.1, 1.5, math.nan])
def test_a_discount_is_between_0_and_1(discount: float) -> None:
    with pytest.raises(ValueError, match=r"^Returns\(discount=.*\): must be between 0 and 1$"):
        Returns(discount)


def test_the_argument_is_checked() -> None:
    for credit in (None, Returns(0.9), given_zeros):
        assert checked_credit(credit) is credit
    with pytest.raises(TypeError, match=r"not an instance\nhint: credit=Returns\(\)$"):
        checked_credit(Returns)
    with pytest.raises(
        TypeError,
        match=r"^credit=0\.95: must be None, Returns\(discount=…\), ReverseKL\(teacher\) or a "
        "function that gets a group of rollouts and returns the advantages of their turns$",
    ):
        checked_credit(0.95)
