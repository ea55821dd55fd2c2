"""Recorded evaluations: resume one, or compare two.

Invariant: a row is identified by its columns, so the order of the rows in a file does not matter.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut.envs.task import RolloutTask
from abut.records.recorded_messages import json_of
from abut.rollout.rollout import Rollout, StopReason, TurnRecord

_DRAWS = 10_000
_DRAWN_AT_ONCE = 10**7
"""Values held at once by the bootstrap, 8 bytes each."""

Place: TypeAlias = tuple[str, int, int]
"""A row's key, the row's number, and the rollout's number within the row."""


def row_key(columns: Mapping[str, Any]) -> str:
    """Return a digest of a row's columns; a record has the same digest as the task it came from."""
    return hashlib.sha256(json_of(columns, sort_keys=True).encode()).hexdigest()


def place_of(task: RolloutTask) -> Place:
    """Return the place of a task."""
    return row_key(task.columns), task.group, task.member


def recorded_at(record: Mapping[str, Any]) -> Place:
    """Return the place of the task that was recorded."""
    return row_key(record["columns"] or {}), record["group"], record["place"]


def rollout_of(record: Mapping[str, Any], index: int) -> Rollout:
    """Return a recorded rollout with all that an `Evaluation` needs, but without tokens."""
    sampled = [*record["env_mask"], *(m for b in record["branches"] for m in b["env_mask"])]
    turns = [*record["turns"], *(turn for branch in record["branches"] for turn in branch["turns"])]
    return Rollout(
        record["rollout_id"],
        index,
        reward=record["reward"],
        error=record["error"],
        stop_reason=StopReason(record["stop_reason"]),
        turns=[TurnRecord(turn["start"], turn["end"]) for turn in turns],
        usage={"completion_tokens": sum(sampled), **record["usage"]},
    )


def row_means(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean reward of each recorded row, over rollouts with a score."""
    rewards: dict[str, list[float]] = {}
    for record in records:
        if record["error"] is None and record["reward"] is not None:
            rewards.setdefault(row_key(record["columns"] or {}), []).append(record["reward"])
    return {key: sum(of_row) / len(of_row) for key, of_row in rewards.items()}


@dataclass(frozen=True)
class Comparison:
    """The difference between two evaluations, over the rows that have a score in both.

    Attributes:
        difference: the mean reward of this evaluation minus that of the other one.
        interval: the 95 % bootstrap interval of the difference, over rows.
        paired: how many rows have a score in both.
        unpaired: how many rows have a score in only one.
    """

    difference: float
    interval: tuple[float, float]
    paired: int
    unpaired: int

    def __str__(self) -> str:
        low, high = self.interval
        alone = (
            f", {self.unpaired} rows left out because only one evaluation has them"
            if self.unpaired
            else ""
        )
        return (
            f"{self.difference:+.4g} (95 % interval {low:+.4g} to {high:+.4g}, "
            f"{self.paired} rows{alone})"
        )


def compare(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Comparison:
    """Compare two evaluations, each given as the mean reward of each row by the row's key.

    Raises:
        ValueError: the two have no row in common.
    """
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        raise ValueError(
            f"the two evaluations have no row in common: {len(ours)} and {len(theirs)} rows with a "
            "score\nhint: two rows are the same only if all their columns are equal"
        )
    differences = np.array([ours[key] - theirs[key] for key in shared])
    low, high = np.percentile(_drawn_means(differences), [2.5, 97.5])
    unpaired = len(ours) + len(theirs) - 2 * len(shared)
    mean = float(differences.mean())
    return Comparison(mean, (float(low), float(high)), len(shared), unpaired)


def _drawn_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of each bootstrap draw; the seed is fixed, so a repeated call agrees."""
    random, at_once = np.random.default_rng(0), max(1, _DRAWN_AT_ONCE // len(values))
    means = [
        values[random.integers(0, len(values), (min(at_once, _DRAWS - done), len(values)))].mean(1)
        for done in range(0, _DRAWS, at_once)
    ]
    return np.concatenate(means)


def resumed(
    tasks: Sequence[RolloutTask], records: Iterable[Mapping[str, Any]]
) -> tuple[list[RolloutTask], list[Rollout]]:
    """Return the tasks that still have to be played, and the recorded rollouts of the others.

    A task whose recorded rollout failed is played again.
    """
    done = {recorded_at(record): record for record in records if record["error"] is None}
    missing, known = [], []
    for task in tasks:
        record = done.get(place_of(task))
        if record is None:
            missing.append(task)
        else:
            known.append(rollout_of(record, task.index))
    return missing, known
