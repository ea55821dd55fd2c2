"""A rollout's row, made of one branch of its ledger, and the other branches beside it."""

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from abut._native import Columns
from abut.agents.protocol import AgentResult
from abut.gateway.ledger.agent_call import AgentCall
from abut.gateway.ledger.branch import LedgerBranch
from abut.gateway.ledger.ledger import Ledger
from abut.messages import container_copy
from abut.rollout.conversation import PolicyTurn
from abut.rollout.rollout import Branch, BranchCause, Rollout, StopReason, TurnRecord

Which: TypeAlias = Literal["longest", "last"]

LIMITS = (
    StopReason.MAX_TURNS,
    StopReason.MAX_COMPLETION_TOKENS,
    StopReason.MAX_CONTEXT_TOKENS,
    StopReason.DEADLINE,
)
"""The limits at which an agent is told that there is no room."""


def limit_of(ledger: Ledger) -> StopReason | None:
    """Return the limit that a rollout's agent ran into last, by a refusal or by a cut answer.

    Clients raise at both (openai's `.parse()`, instructor), so neither is a failure of the agent.
    """
    if ledger.refused in LIMITS:
        return ledger.refused
    for branch in ledger.branches:
        allowance = branch.conversation.allowance
        if branch.calls and allowance.tokens < 1 and _was_cut(branch.calls[-1], ledger.calls):
            return allowance.reason
    return None


def _was_cut(call: AgentCall, calls: Sequence[AgentCall]) -> bool:
    """Return whether an answer was cut, and the agent has made no call since it got that answer.

    An error that an agent raises later has another cause. Calls that it made at the same time as
    the cut one don't count, because it did not know of the cut yet.
    """
    assert call.sample is not None
    answered_at = call.asked_at + call.generate_s
    is_last = all(other.asked_at <= answered_at for other in calls)
    return is_last and call.sample.finish_reason == "length"


def fill(rollout: Rollout, ledger: Ledger | None, which: Which, result: AgentResult) -> None:
    """Fill a rollout from its ledger.

    Args:
        rollout: has its id, and the messages of its task.
        ledger: one that no longer changes; None if it still may.
        which: the branch that becomes the row.
        result: of the agent.
    """
    rollout.reward, rollout.extras = result.reward, result.extras
    rollout.measured = result.measured
    if ledger is not None:
        rollout.client_rewrites = dict(ledger.client_rewrites)
        rollout.tool_choice_unmet = ledger.tool_choice_unmet
        row = row_of(ledger.branches, which)
        rollout.branches = others(ledger.branches, row)
        rollout.stop_reason = StopReason.ENV_DONE
        if ledger.refused is StopReason.EMPTY_SAMPLE:
            rollout.stop_reason = ledger.refused
        elif (limit := limit_of(ledger)) is not None:
            rollout.stop_reason = limit
        if row is not None:
            calls = row.calls[: row.delivered_calls]
            last = row.conversation.turns[len(calls) - 1]
            talk = row.conversation.fork(last.end)
            rollout.columns = talk.trajectory.columns()
            rollout.prompt_ids = rollout.columns.prompt_ids
            rollout.provenance = talk.trajectory.provenance
            rollout.turns = [_record(call) for call in calls]
            rollout.turns[-1].reward = result.reward
            rollout.tools = json.loads(row.frame)[0] or ()
            rollout.seams, rollout.messages = talk.seams, talk.messages
            rollout.control_spellings = talk.control_spellings
    if result.messages is not None:
        rollout.messages = container_copy([dict(message) for message in result.messages])


def _record(call: AgentCall) -> TurnRecord:
    turn, sample = call.turn, call.sample
    assert turn is not None
    assert sample is not None
    turn.record.note_sample(sample, call.generate_s)
    turn.record.env_s = call.env_s
    return turn.record


def row_of(branches: Sequence[LedgerBranch], which: Which) -> LedgerBranch | None:
    """Return the branch that becomes the row: one of those with a delivered sample."""
    heard = [branch for branch in branches if branch.delivered_calls]
    if not heard:
        return None
    if which == "last":
        return max(heard, key=_last_delivery)
    return max(heard, key=lambda branch: (_heard_tokens(branch), _last_delivery(branch)))


def _last_delivery(branch: LedgerBranch) -> int:
    return branch.calls[branch.delivered_calls - 1].delivery


def _heard_tokens(branch: LedgerBranch) -> int:
    return sum(call.sampled_tokens for call in branch.calls[: branch.delivered_calls])


def others(branches: Sequence[LedgerBranch], row: LedgerBranch | None) -> list[Branch]:
    """Return the branches that are not in the row, if they sampled tokens of their own."""
    owned = {id(call) for call in row.calls[: row.delivered_calls]} if row else set()
    found: list[Branch] = []
    # Longest first: a branch that another one goes on from is a part of that one.
    for branch in sorted(branches, key=lambda branch: -len(branch.calls)):
        ends = sorted({branch.delivered_calls, len(branch.calls)})
        for end in ends:
            own = [k for k, call in enumerate(branch.calls[:end]) if id(call) not in owned]
            owned |= {id(branch.calls[k]) for k in own}
            if any(branch.calls[k].sampled_tokens for k in own):
                cause = branch.cause or (None if row is None else row.cause)
                found.append(_recorded(branch, own[0], end, cause))
    return found


def _recorded(branch: LedgerBranch, begin: int, end: int, cause: BranchCause | None) -> Branch:
    """Return the turns from `begin` to `end`, with everything before them as the prompt."""
    trajectory = branch.conversation.trajectory
    turns = branch.conversation.turns
    while turns[begin].start == turns[begin].end:
        begin += 1
    last = max(k for k in range(begin, end) if turns[k].end > turns[k].start)
    start, stop = turns[begin].start, turns[last].end
    ids, mask = trajectory.ids, trajectory.sampled_mask
    logprobs: Any = np.nan_to_num(trajectory.logprobs[start:stop], nan=0.0)
    columns = Columns(
        prompt_ids=ids[:start],
        completion_ids=ids[start:stop],
        logprobs=logprobs,
        env_mask=mask[start:stop],
    )
    return Branch(
        columns,
        provenance=trajectory.provenance[:stop],
        cause=cause,
        delivered=end <= branch.delivered_calls,
        versions=_versions(branch.calls[begin : last + 1], turns[begin : last + 1]),
    )


def _versions(calls: Sequence[AgentCall], turns: Sequence[PolicyTurn]) -> Any:
    """Return `Rollout.versions` from the first of these turns to the last."""
    start = turns[0].start
    of_tokens = np.full(turns[-1].end - start, -1, np.int64)
    for call, turn in zip(calls, turns, strict=True):
        if call.sample is None or call.sample.versions is None:
            return ()
        of_tokens[turn.start - start : turn.end - start] = call.sample.versions
    return of_tokens
