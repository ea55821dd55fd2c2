"""What the calls of a session become: one row, and branches beside it."""

import json
from collections.abc import Sequence

from abut.agents import AgentResult
from abut.gateway.branch import Which, others, row_of
from abut.gateway.call import Call
from abut.gateway.session import Session
from abut.messages import container_copy
from abut.rollout.rollout import Rollout, StopReason, TurnRecord

LIMITS = (
    StopReason.MAX_TURNS,
    StopReason.MAX_COMPLETION_TOKENS,
    StopReason.MAX_CONTEXT_TOKENS,
    StopReason.DEADLINE,
)
"""For which an agent is told that there is no more."""


def limit_of(session: Session) -> StopReason | None:
    """The limit that the agent of a session ran into last, by a refusal or by a cut answer.

    Clients raise at both (openai's `.parse()`, instructor), so neither is a failure of the agent.
    """
    if session.refused in LIMITS:
        return session.refused
    for branch in session.branches:
        allowance = branch.conversation.allowance
        if branch.calls and allowance.tokens < 1 and _was_cut(branch.calls[-1], session.calls):
            return allowance.reason
    return None


def _was_cut(call: Call, calls: Sequence[Call]) -> bool:
    """Return whether an answer was cut, and the agent asked nothing since it heard that.

    What an agent raises after it went on has another cause. Calls that were asked at the same time
    as the one that was cut don't count: the agent did not know yet.
    """
    assert call.sample is not None
    answered_at = call.asked_at + call.generate_s
    is_last = all(other.asked_at <= answered_at for other in calls)
    return is_last and call.sample.finish_reason == "length"


def fill(rollout: Rollout, session: Session | None, which: Which, result: AgentResult) -> None:
    """Fill a rollout with what was said.

    Args:
        rollout: has its id, and the messages that there were before any call.
        session: that changes no more; None where it may.
        which: of its branches becomes the row.
        result: the agent's.
    """
    rollout.reward, rollout.extras = result.reward, result.extras
    rollout.measured = result.measured
    if session is not None:
        rollout.client_rewrites = dict(session.client_rewrites)
        rollout.tool_choice_unmet = session.tool_choice_unmet
        row = row_of(session.branches, which)
        rollout.branches = others(session.branches, row)
        rollout.stop_reason = StopReason.ENV_DONE
        if session.refused is StopReason.EMPTY_SAMPLE:
            rollout.stop_reason = session.refused
        elif (limit := limit_of(session)) is not None:
            rollout.stop_reason = limit
        if row is not None:
            calls = row.calls[: row.delivered]
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


def _record(call: Call) -> TurnRecord:
    turn, sample = call.turn, call.sample
    assert turn is not None
    assert sample is not None
    return TurnRecord(
        turn.start,
        turn.end,
        sample.finish_reason,
        call.generate_s,
        call.env_s,
        stop_token=turn.stop_token,
        stop_string=turn.stop_string,
        stop_inside=turn.stop_inside,
        model_version=sample.model_version,
        versions=() if sample.versions is None else sample.versions,
        newest_version=sample.newest_version,
    )
