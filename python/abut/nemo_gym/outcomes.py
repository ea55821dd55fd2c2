"""What became of a rollout, and what is told of it.

Invariant: a rollout that failed, was masked, or whose tokens are not those of the ledger has no
reward: None, never 0.0.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut.errors import EnvError
from abut.gateway.ledger.unnamed import Unnamed
from abut.nemo_gym.replies import Reply, is_told
from abut.rollout.rollout import Rollout, StopReason

_CUT = (
    StopReason.MAX_TURNS,
    StopReason.MAX_COMPLETION_TOKENS,
    StopReason.MAX_CONTEXT_TOKENS,
    StopReason.DEADLINE,
)


class Outcome(StrEnum):
    """What became of a rollout."""

    OK = "ok"
    TRUNCATED = "truncated"
    """A limit ended it; its reward is what the environment says of what there is."""
    MASKED = "masked"
    """Its environment says that the reward measures nothing."""
    FAILED = "failed"
    DRIFT = "drift"
    """The agent has tokens that are not those of the ledger: somebody else answered it."""


def outcome_of(rollout: Rollout, reply: Reply | None) -> Outcome:
    """What became of a rollout that has ended.

    Args:
        rollout: as the gateway's ledger has it.
        reply: of its agent; None where none counts.
    """
    if rollout.failed:
        return Outcome.FAILED
    if reply is None:  # its agent raised at an answer that a limit had cut
        return Outcome.TRUNCATED if rollout.stop_reason in _CUT else Outcome.FAILED
    lines = list(_ledger(rollout))
    if not all(is_told(lines, ids) for ids, _ in reply.calls):
        return Outcome.DRIFT
    if reply.masked:
        return Outcome.MASKED
    cut = bool(rollout.turns) and rollout.turns[-1].finish_reason == "length"
    if reply.truncated or cut or rollout.stop_reason in _CUT:
        return Outcome.TRUNCATED
    return Outcome.OK


def settled(rollout: Rollout, agent: str, reply: Reply | None) -> Outcome:
    """Give a rollout its reward, the columns of reward functions, and metrics of its agent."""
    outcome = outcome_of(rollout, reply)
    scored = outcome in (Outcome.OK, Outcome.TRUNCATED)
    if not (scored or rollout.failed):  # what one that failed has is RolloutConfig.on_failure's
        rollout.reward = None
        rollout.measured = False
        for turn in rollout.turns:
            turn.reward = None
    components = reply.components if reply is not None and scored else {}
    of_agent = f"nemo_gym/{agent}"
    rollout.extras = {
        "nemo_gym_outcome": outcome.value,
        **{f"reward_{name}": value for name, value in components.items()},
        **{f"{of_agent}/{one}_frac": float(one is outcome) for one in Outcome},
        f"{of_agent}/reward": rollout.reward,
        **{f"{of_agent}/reward/{name}": value for name, value in components.items()},
        f"{of_agent}/turns": float(len(rollout.turns)),
        f"{of_agent}/seconds": rollout.seconds,
        f"{of_agent}/branched_frac": float(bool(rollout.branches)),
    }
    return outcome


def unheard(agent: str, unnamed: Unnamed) -> EnvError:
    """Return why an agent answered, and none of its calls is in the ledger of its rollout."""
    error = EnvError(f"agent {agent} answered, and no call of it was heard by this gateway")
    hint = "policy_base_url of Gym's configuration must be the gateway's address"
    if unnamed.refused:
        error = EnvError(
            f"agent {agent} answered, and this gateway could give no call to its rollout: "
            f"{_requests(unnamed.refused)} refused, the last of them "
            f"{unnamed.last}"
        )
        hint = (
            "the harness asks the model server itself and leaves out the rollout's id, which "
            "stands in responses_create_params.metadata; have it pass the metadata on, or play one "
            "rollout of a prompt at a time"
        )
    error = EnvError(f"{error}\nhint: {hint}")
    error.may_pass = False
    return error


def _requests(count: int) -> str:
    if count == 1:
        return "1 request without a rollout id was"
    return f"{count} requests without a rollout id were"


def _ledger(rollout: Rollout) -> Iterator[NDArray[np.int64]]:
    """Prompt and completion of the row and of each branch."""
    told: Sequence[Any] = [rollout, *rollout.branches]
    for one in told:
        if one.columns is not None:
            yield np.concatenate([one.columns.prompt_ids, one.columns.completion_ids])
