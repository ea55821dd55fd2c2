"""What the calls of a session become: one row, and branches beside it."""

import json

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
        if session.refused in (*LIMITS, StopReason.EMPTY_SAMPLE):
            rollout.stop_reason = session.refused
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
