"""The scores of recorded rollouts: what reward functions and the trainer gave them."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut.records.record import SCHEMA_VERSION


def score_record(
    run_id: str,
    rollout_id: str,
    rewards: Mapping[str, float | None],
    *,
    total: float | None,
    advantage: float | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    padding_rows: int | None = None,
) -> dict[str, Any]:
    """Return the record of the scores of one rollout.

    Args:
        run_id: the run that the rollout belongs to.
        rollout_id: the rollout.
        rewards: the reward of each reward function, by name; None if the function gave none.
        total: their sum as the trainer weighs them; None if no function gave a reward.
        advantage: None if the trainer did not compute one.
        rows: what each conversation that was trained counted, the rollout's own row first; None if
            the trainer has one row for each rollout. `row`: its number among the rows of the rank,
            None if they have none. `branch`: its number in `branches`, None for the rollout's own
            row. `weight`: the factor on its loss. `advantages`: of its own turns.
        padding_rows: how many rows of padding the rank has after those of all its rollouts; None
            if its rows have no numbers.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "rollout_id": rollout_id,
        "time": round(time.time(), 3),
        "rewards": [{"name": name, "value": value} for name, value in rewards.items()],
        "total": total,
        "advantage": advantage,
        "rows": None if rows is None else [dict(row) for row in rows],
        "padding_rows": padding_rows,
    }


def total_of(record: Mapping[str, Any]) -> float | None:
    """Return the reward that the trainer used, or the environment's if the record has no scores.

    None also where the record lacks the column.
    """
    return record.get("reward" if record.get("rewards") is None else "total")


def reverse_kl_of(of: Mapping[str, Any]) -> NDArray[np.float64] | None:
    """Return `(T,)`, aligned with `completion_ids`: each logprob less the teacher's, in nats.

    NaN where the token was not sampled; None where no teacher scored the row.

    Args:
        of: a record, or one of its branches.
    """
    of_teacher = of.get("teacher_logprobs")
    if of_teacher is None:
        return None
    divergence = np.asarray(of["logprobs"], np.float64) - np.asarray(of_teacher, np.float64)
    return np.where(np.asarray(of["env_mask"]) == 1, divergence, np.nan)


def advantages_of(record: Mapping[str, Any], branch: int | None) -> Sequence[float]:
    """Return the advantage of each turn of a branch, or of the row; empty if it was not trained."""
    for row in record.get("rows") or ():
        if row["branch"] == branch:
            advantages: Sequence[float] = row["advantages"]
            return advantages
    return ()
