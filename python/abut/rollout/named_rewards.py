"""Rewards that an agent gives to parts of its rollout: by name, session or answer.

Invariant: a conversation has at most one reward of its own (its session's, otherwise its name's),
and then its turns have none. A key that does not match anything in the rollout is an error, so no
reward is lost silently. A rollout that was not measured has no rewards at all.
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
    """Return the name of a conversation: of its calls, or else of its session."""
    return names.get(session) if name is None and session is not None else name


def reward_key(
    name: str | None, session: str | None, rewards: Mapping[str, float | None]
) -> str | None:
    """Return the key of a conversation's own reward; None without one."""
    return next((key for key in (session, name) if key is not None and key in rewards), None)


def is_auxiliary(looks_auxiliary: bool, name: str | None) -> bool:
    """Return whether a conversation is auxiliary, see `Branch.auxiliary`.

    Args:
        looks_auxiliary: the judgement from its calls alone, without the name of its session.
        name: of the conversation; one with a name is never auxiliary.
    """
    return looks_auxiliary and name is None


class ConversationKeys(NamedTuple):
    """The keys by which a conversation may get its own reward."""

    name: str | None
    session: str | None


class RewardKeys(NamedTuple):
    """The keys that rewards of a rollout may have.

    Attributes:
        conversations: the keys of each conversation.
        asked_by: see `Rollout`.
        answers: the conversation of each answer, by the answer's id.
        of_turns: whether answers may be rewarded.
        paid: the ids of answers whose turns already have a reward, from `settle`.
    """

    conversations: Collection[ConversationKeys]
    asked_by: Collection[str]
    answers: Mapping[str, ConversationKeys]
    of_turns: bool
    paid: Collection[str] = ()

    @classmethod
    def of(cls, rollout: Rollout, *, of_turns: bool) -> "RewardKeys":
        """Return the keys of a filled rollout, before `give_rewards`."""
        conversations, answers, paid = [], {}, []
        for conversation in _conversations(rollout):
            keys = ConversationKeys(conversation.name, conversation.session)
            conversations.append(keys)
            for turn in conversation.turns:
                if turn.answer_id is not None:
                    answers[turn.answer_id] = keys
                    if turn.reward is not None:
                        paid.append(turn.answer_id)
        return cls(conversations, rollout.asked_by, answers, of_turns, paid)

    def check(self, rewards: Mapping[str, float | None], names: Mapping[str, str]) -> None:
        """Check that each key means one thing, and that no turn is rewarded twice.

        Raises:
            ValueError: a key is wrong; names it.
        """
        if not (rewards or names):
            return
        sessions = {session for _, session in self.conversations if session is not None}
        given = (conversation_name(name, session, names) for name, session in self.conversations)
        named = {name for name in given if name is not None}
        if both := sorted(sessions & {*named, *names.values()}):
            raise ValueError(
                f"{both[0]!r} is both a name and a session of calls, so it is not clear which of "
                "them a reward for it belongs to\n"
                "hint: use another name"
            )
        known = {*named, *sessions, *self.asked_by, *names, *names.values()}
        for key in sorted(rewards.keys() - known):
            if key not in self.answers:
                listed = ", ".join(map(repr, sorted(named | sessions)[:_LISTED])) or "none"
                raise ValueError(
                    f"AgentResult.rewards has {key!r}, which is not a name or session of this "
                    "rollout's calls, nor the id of an answer\n"
                    f"hint: the names and sessions are {listed}; list a name that may make no "
                    "calls in AgentResult.names"
                )
            if not self.of_turns:
                raise ValueError(
                    f"AgentResult.rewards has {key!r}, the id of an answer, but rewards of "
                    "single turns need credit\n"
                    "hint: use make_rollout_func(…, credit=Returns()) with abut.trl.GRPOTrainer"
                )
        scored = {answer for answer in self.answers if rewards.get(answer) is not None}
        for answer in sorted(scored.union(self.paid)):
            name, session = self.answers[answer]
            named_as = conversation_name(name, session, names)
            own = reward_key(named_as, session, rewards)
            if own is not None and rewards[own] is not None:
                raise ValueError(
                    f"AgentResult.rewards has a reward for the conversation {own!r} and another "
                    f"for its answer {answer!r}\n"
                    "hint: give a reward to the conversation or to its turns, not to both"
                )


def give_rewards(rollout: Rollout, auxiliary: Auxiliary = "train") -> None:
    """Give each conversation its name and reward, and each turn its reward; called once.

    In a rollout that was not measured, nothing has a reward and nothing is trained.

    Args:
        rollout: one whose keys were checked.
        auxiliary: see `RolloutConfig.auxiliary`.
    """
    if not rollout.measured:
        rollout.reward = None
    rewards = rollout.rewards if rollout.measured else {}
    if (main := rollout.main_row) is not None:
        main = _rewarded(main, rollout, auxiliary)
        rollout.name, rollout.row_reward, rollout.row_trained = main.name, main.reward, main.trained
    rollout.branches = [_rewarded(branch, rollout, auxiliary) for branch in rollout.branches]
    for turn in turns_of(rollout):
        if not rollout.measured:
            turn.reward = None
        elif turn.answer_id is not None and turn.answer_id in rewards:
            turn.reward = rewards[turn.answer_id]


def _rewarded(branch: Branch, rollout: Rollout, auxiliary: Auxiliary) -> Branch:
    name = conversation_name(branch.name, branch.session, rollout.names)
    key = reward_key(name, branch.session, rollout.rewards)
    reward = None if key is None else rollout.rewards[key]
    has_score = rollout.measured and (key is None or reward is not None)
    of_kind = is_auxiliary(branch.auxiliary, name)
    is_left_out = of_kind and auxiliary == "leave_out"
    return dataclasses.replace(
        branch,
        name=name,
        reward=reward if rollout.measured else None,
        auxiliary=of_kind,
        trained=branch.trained and has_score and not is_left_out,
    )


def _conversations(rollout: Rollout) -> Iterator[Branch]:
    if (main := rollout.main_row) is not None:
        yield main
    yield from rollout.branches


def turns_of(rollout: Rollout) -> Iterator[TurnRecord]:
    """Yield the turns of all conversations of a rollout."""
    for conversation in _conversations(rollout):
        yield from conversation.turns
