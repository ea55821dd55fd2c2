"""Rewards by name, session and answer: each conversation gets its own, and no key is for nobody."""

from typing import Any

import pytest

from abut.rollout.named_rewards import RewardKeys, give_rewards, turns_of
from abut.rollout.rollout import Branch, Rollout, TurnRecord
from tests.kit.data.records import a_rollout

COLUMNS = a_rollout().columns


def a_tree(**changes: Any) -> Rollout:
    """A row of `white`, and branches of `black` in two sessions and of nobody in a third."""
    turns = [TurnRecord(2, 3, answer_id="w0"), TurnRecord(4, 5, answer_id="w1")]
    assert COLUMNS is not None
    branches = [
        Branch(COLUMNS, name="black", session="b1", turns=[TurnRecord(2, 5, answer_id="b1-0")]),
        Branch(COLUMNS, name="black", session="b2"),
        Branch(COLUMNS, session="b3", auxiliary=True),
        Branch(COLUMNS, name="judge", trained=False),
        Branch(COLUMNS, name="white", turns_before=turns),
    ]
    made = a_rollout(name="white", turns=turns, branches=branches, asked_by={"late"})
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def rewards(rollout: Rollout) -> list[float | None]:
    return [rollout.row_reward, *(branch.reward for branch in rollout.branches)]


def trained(rollout: Rollout) -> list[bool]:
    return [rollout.row_trained, *(branch.trained for branch in rollout.branches)]


def check(rollout: Rollout, *, of_turns: bool) -> None:
    RewardKeys.of(rollout, of_turns=of_turns).check(rollout.rewards, rollout.names)


def given(**changes: Any) -> Rollout:
    rollout = a_tree(**changes)
    check(rollout, of_turns=True)
    give_rewards(rollout)
    return rollout


def test_without_rewards_nothing_has_one_of_its_own() -> None:
    rollout = given()
    assert rewards(rollout) == [None] * 6
    assert trained(rollout) == [True, True, True, True, False, True]


def test_a_name_s_reward_is_that_of_its_conversations_and_a_session_s_beats_it() -> None:
    rollout = given(rewards={"black": -1.0, "b2": 0.5, "judge": 2.0, "white": 1.0})
    assert rewards(rollout) == [1.0, -1.0, 0.5, None, 2.0, 1.0]
    assert trained(rollout) == [True, True, True, True, False, True]


def test_none_is_no_score_and_such_a_conversation_is_never_a_row() -> None:
    rollout = given(rewards={"black": 1.0, "b1": None, "white": None})
    assert rewards(rollout) == [None, None, 1.0, None, None, None]
    assert trained(rollout) == [False, False, True, True, False, False]


def test_names_are_given_to_sessions_without_one() -> None:
    names = {"b1": "white", "b3": "referee", "nobody": "unused"}
    rollout = given(names=names, rewards={"referee": 0.25, "unused": 1.0, "nobody": 2.0})
    assert [branch.name for branch in rollout.branches] == [
        *("black", "black", "referee", "judge", "white")
    ]
    assert rewards(rollout) == [None, None, None, 0.25, None, None]
    assert not rollout.branches[2].auxiliary, "one with a name is never auxiliary"


def test_an_answer_s_reward_is_that_of_its_turn_in_each_conversation() -> None:
    rollout = given(rewards={"w0": 0.5, "b1-0": None})
    assert rollout.step_rewards == [0.5, None]
    assert rollout.branches[4].before == [0.5, None]
    assert rollout.branches[0].turns[0].reward is None
    assert rewards(rollout) == [None] * 6


def test_auxiliary_conversations_are_left_out_where_the_config_says_so() -> None:
    rollout = a_tree()
    give_rewards(rollout, "leave_out")
    assert trained(rollout) == [True, True, True, False, False, True]
    rollout = a_tree(rewards={"b3": 1.0}, names={"b3": "title"})
    give_rewards(rollout, "leave_out")
    assert trained(rollout) == [True, True, True, True, False, True]


def test_a_refused_call_s_name_is_known() -> None:
    check(a_tree(rewards={"late": 1.0}), of_turns=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rewards": {"wite": 1.0}},
            "AgentResult.rewards has 'wite', which is not a name or session of this rollout's "
            "calls, nor the id of an answer\n"
            "hint: the names and sessions are 'b1', 'b2', 'b3', 'black', 'judge', 'white'; list "
            "a name that may make no calls in AgentResult.names",
        ),
        (
            {"rewards": {"w0": 1.0}},
            "AgentResult.rewards has 'w0', the id of an answer, but rewards of single turns need "
            "credit\n"
            "hint: use make_rollout_func(…, credit=Returns()) with abut.trl.GRPOTrainer",
        ),
        (
            {"rewards": {"white": 1.0}, "session": "white"},
            "'white' is both a name and a session of calls, so it is not clear which of them a "
            "reward for it belongs to\n"
            "hint: use another name",
        ),
        (
            {"names": {"b3": "b1"}},
            "'b1' is both a name and a session of calls, so it is not clear which of them a "
            "reward for it belongs to\n"
            "hint: use another name",
        ),
    ],
)
def test_a_key_that_is_nothing_or_two_things_is_an_error(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match="hint: ") as raised:
        check(a_tree(**changes), of_turns=False)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("rewards", "conversation", "answer"),
    [
        ({"white": 1.0, "w1": 0.5}, "white", "w1"),
        ({"black": 1.0, "b1": -1.0, "b1-0": 0.5}, "b1", "b1-0"),
    ],
)
def test_a_reward_for_a_conversation_and_for_one_of_its_turns_is_an_error(
    rewards: dict[str, float | None], conversation: str, answer: str
) -> None:
    said = (
        f"AgentResult.rewards has a reward for the conversation {conversation!r} and another for "
        f"its answer {answer!r}\n"
        "hint: give a reward to the conversation or to its turns, not to both"
    )
    with pytest.raises(ValueError, match="hint: ") as raised:
        check(a_tree(rewards=rewards), of_turns=True)
    assert str(raised.value) == said
    rollout = a_tree(rewards={conversation: 1.0})  # and so it is with one that `settle` has set
    paid = next(t for t in turns_of(rollout) if t.answer_id == answer)
    paid.reward = 0.5
    with pytest.raises(ValueError, match="hint: ") as raised:
        check(rollout, of_turns=True)
    assert str(raised.value) == said
    rewards[conversation] = None  # it is not trained, but its turns may be in the path of a fork
    check(a_tree(rewards=rewards), of_turns=True)


def test_of_a_rollout_that_was_not_measured_nothing_has_a_reward_and_nothing_is_trained() -> None:
    """Otherwise its conversations would be trained by rewards of their own, and nothing else."""
    rollout = given(measured=False, rewards={"white": 1.0, "b1-0": 0.5, "b2": 2.0}, reward=1.0)
    assert rollout.reward is None
    assert rewards(rollout) == [None] * 6
    assert trained(rollout) == [False] * 6
    assert all(turn.reward is None for turn in turns_of(rollout))
    assert rollout.rewards["white"] == 1.0, "the record has what the agent said"
