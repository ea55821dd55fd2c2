"""Rewards that an agent gives to parts of its rollout: by name, session or answer.

Invariant: a conversation has at most one reward of its own, that of its session before that of its
name. A key that stands for nothing in the rollout is an error, not a reward that nobody gets.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

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


class RewardKeys(NamedTuple):
    """The keys that rewards of a rollout may have.

    Attributes:
        callers: name and session of each conversation.
        asked_by: as in `Rollout`.
        answers: the ids of its answers.
        of_turns: whether answers may be rewarded.
    """

    callers: Collection[tuple[str | None, str | None]]
    asked_by: Collection[str]
    answers: Collection[str | None]
    of_turns: bool

    @classmethod
    def of(cls, rollout: Rollout, *, of_turns: bool) -> "RewardKeys":
        """Return the keys of a filled rollout, before `give_rewards`."""
        callers = [(branch.name, branch.session) for branch in _conversations(rollout)]
        answers = {turn.answer_id for turn in _turns(rollout)}
        return cls(callers, rollout.asked_by, answers, of_turns)

    def check(self, rewards: Mapping[str, float | None], names: Mapping[str, str]) -> None:
        """Check that each key stands for one thing.

        Raises:
            ValueError: names the key.
        """
        if not (rewards or names):
            return
        sessions = {session for _, session in self.callers if session is not None}
        given = (conversation_name(name, session, names) for name, session in self.callers)
        named = {name for name in given if name is not None}
        if both := sorted(sessions & {*named, *names.values()}):
            raise ValueError(
                f"{both[0]!r} is both the name and the session of calls, so a reward for it could "
                "be either's\nhint: give the name another text"
            )
        known = {*named, *sessions, *self.asked_by, *names, *names.values()}
        for key in sorted(rewards.keys() - known):
            if key not in self.answers:
                listed = ", ".join(map(repr, sorted(named | sessions)[:_LISTED])) or "none"
                raise ValueError(
                    f"AgentResult.rewards has {key!r}, which is no name and no session of this "
                    f"rollout's calls, and no answer's id\nhint: its names and sessions are "
                    f"{listed}; a name that may have made no call must be in AgentResult.names"
                )
            if not self.of_turns:
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
