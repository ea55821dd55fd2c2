"""Rewards that an agent gives to parts of its rollout: by name, session or answer.

Invariant: a conversation has at most one reward of its own, that of its session before that of its
name. A key that stands for nothing in the rollout is an error, not a reward that nobody gets.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from abut.rollout.rollout import Branch, Rollout, TurnRecord

Auxiliary: TypeAlias = Literal["train", "leave_out"]

_LISTED = 8


def conversation_name(
    name: str | None, session: str | None, names: Mapping[str, str]
) -> str | None:
    """Return the name of a conversation: that of its calls, or else the one of its session."""
    return names.get(session) if name is None and session is not None else name


def reward_key(
    name: str | None, session: str | None, rewards: Mapping[str, float | None]
) -> str | None:
    """Return the key of a conversation's own reward; None if it has none."""
    return next((key for key in (session, name) if key is not None and key in rewards), None)


def check_rewards(rollout: Rollout, *, of_turns: bool) -> None:
    """Check that each key of `rollout.rewards` stands for one thing.

    Args:
        rollout: a filled one, before `give_rewards`.
        of_turns: whether a key may be the id of an answer.

    Raises:
        ValueError: names the key.
    """
    if not (rollout.rewards or rollout.names):
        return
    conversations = list(_conversations(rollout))
    sessions = {c.session for c in conversations if c.session is not None}
    given = (conversation_name(c.name, c.session, rollout.names) for c in conversations)
    named = {name for name in given if name is not None}
    if both := sorted(sessions & {*named, *rollout.names.values()}):
        raise ValueError(
            f"{both[0]!r} is both the name and the session of calls, so a reward for it could be "
            "either's\nhint: give the name another text"
        )
    known = {*named, *sessions, *rollout.asked_by, *rollout.names, *rollout.names.values()}
    answers = {turn.answer_id for turn in _turns(rollout)}
    for key in rollout.rewards:
        if key in known:
            continue
        if key not in answers:
            listed = ", ".join(map(repr, sorted(named | sessions)[:_LISTED])) or "none"
            raise ValueError(
                f"AgentResult.rewards has {key!r}, which is no name and no session of this "
                f"rollout's calls, and no answer's id\nhint: its names and sessions are {listed}; "
                "a name that may have made no call must be in AgentResult.names"
            )
        if not of_turns:
            raise ValueError(
                f"AgentResult.rewards has {key!r}, an answer's id, but rewards of single turns "
                "need credit\nhint: make_rollout_func(…, credit=Returns()) with "
                "abut.trl.GRPOTrainer"
            )


def give_rewards(rollout: Rollout, auxiliary: Auxiliary = "train") -> None:
    """Give each conversation its name and reward, and each turn its reward; called once.

    Args:
        rollout: a checked one.
        auxiliary: see `RolloutConfig.auxiliary`.
    """
    rewards = rollout.rewards
    if (main := rollout.main_row) is not None:
        main = _rewarded(main, rollout, auxiliary)
        rollout.name, rollout.row_reward, rollout.row_trained = main.name, main.reward, main.trained
    rollout.branches = [_rewarded(branch, rollout, auxiliary) for branch in rollout.branches]
    for turn in _turns(rollout):
        if turn.answer_id is not None and turn.answer_id in rewards:
            turn.reward = rewards[turn.answer_id]


def _rewarded(branch: Branch, rollout: Rollout, auxiliary: Auxiliary) -> Branch:
    name = conversation_name(branch.name, branch.session, rollout.names)
    key = reward_key(name, branch.session, rollout.rewards)
    reward = None if key is None else rollout.rewards[key]
    is_auxiliary = branch.auxiliary and name is None
    has_score = key is None or reward is not None
    is_left_out = is_auxiliary and auxiliary == "leave_out"
    return dataclasses.replace(
        branch,
        name=name,
        reward=reward,
        auxiliary=is_auxiliary,
        trained=branch.trained and has_score and not is_left_out,
    )


def _conversations(rollout: Rollout) -> Iterator[Branch]:
    if (main := rollout.main_row) is not None:
        yield main
    yield from rollout.branches


def _turns(rollout: Rollout) -> Iterator[TurnRecord]:
    for conversation in _conversations(rollout):
        yield from conversation.turns
