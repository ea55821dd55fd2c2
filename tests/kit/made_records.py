"""A rollout as records have it, of a few made-up tokens."""

from typing import Any

import abut
from abut.rollout.rollout import Rollout, StopReason, TurnRecord


def a_rollout(rollout_id: str = "r0", **changes: Any) -> Rollout:
    columns = abut.Columns(
        prompt_ids=[1, 2], completion_ids=[3, 4, 5], logprobs=[-0.5, 0.0, -0.25], env_mask=[1, 0, 1]
    )
    rollout = Rollout(
        rollout_id,
        0,
        columns=columns,
        provenance=[0, 0, 3, 2, 3],
        reward=0.5,
        turns=[TurnRecord(2, 3, "stop", 0.25, env_s=0.5, reward=None, stop_token=3)],
        seams=[("barrier", True)],
        messages=[{"role": "user", "content": "hi"}],
        stop_reason=StopReason.ENV_DONE,
    )
    for name, value in changes.items():
        setattr(rollout, name, value)
    return rollout
