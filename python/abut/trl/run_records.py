"""The records of a training run: its rollouts and their scores.

Scores are known only after the `rollout_func` has returned. Each reward function sees only its own
values and never the advantages, and TRL has no public API for all of them. They are read from
`trainer._logs`, the source of TRL's table of completions, which is private and has the last batch
of all ranks, in order. If a TRL version keeps a value elsewhere, it is recorded as absent.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from abut.envs.task import RolloutTask
from abut.records.image_folder import ImageFolder
from abut.records.recorder import Recorder
from abut.records.scores import score_record
from abut.rollout.rollout import Rollout
from abut.trl.rewards import total_reward
from abut.trl.rows.all_rows import AllRows
from abut.trl.rows.row_batch import RowBatch


class RolloutRecorder:
    """Writes the rollouts of one rank of a training run, each with run, rank, mode and step.

    Args:
        recorder: the recorder that keeps them.
        run_id: the id of the run.
        rank: the rank of this process.
        mode: "train" or "eval".
        tokenizer: the name of the tokenizer.
        images: the folder that keeps their images; None: images are not kept.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        run_id: str,
        rank: int,
        mode: str,
        tokenizer: str,
        images: ImageFolder | None = None,
    ) -> None:
        self._recorder = recorder
        self._images = images
        self._of_run = {"run_id": run_id, "rank": rank, "mode": mode, "tokenizer": tokenizer}

    def write(self, task: RolloutTask, rollout: Rollout, *, step: int | None) -> None:
        """Record one rollout; `step` is the trainer's step, if it is known."""
        if self._images is not None:
            self._images.write(rollout)
        self._recorder.write(
            rollout,
            **self._of_run,
            step=step,
            group=task.group,
            place=task.member,
            seed=task.seed,
            episode_seed=task.episode_seed,
            columns=task.columns,
        )


class _ScoredBatch(NamedTuple):
    trainer: Any
    rollouts: Sequence[Rollout]
    run_id: str
    before: list[Any]
    """The completions in the logs before; they stay the same objects until the batch is scored."""


class TrainerScores:
    """Passes the scores of each batch on.

    Args:
        write: called with them as records.
        finish: called when training or an evaluation is over.
    """

    def __init__(
        self, write: Callable[[Sequence[Mapping[str, Any]]], None], finish: Callable[[], None]
    ) -> None:
        self._write = write
        self._finish = finish
        self._batch: _ScoredBatch | None = None
        self._followed: Any = None

    def expect(self, trainer: Any, rollouts: Sequence[Rollout], run_id: str) -> None:
        """Note this rank's rollouts, which TRL scores next."""
        self._follow(trainer)
        self._batch = _ScoredBatch(trainer, rollouts, run_id, _completions(trainer))

    def collect(self) -> None:
        """Write the scores of the noted batch, if it has been scored since."""
        batch, self._batch = self._batch, None
        if batch is None or not _is_scored(batch):
            return
        logs, rollouts = batch.trainer._logs, batch.rollouts
        count = len(rollouts)
        accelerator = batch.trainer.accelerator
        ranks, rank = accelerator.num_processes, accelerator.process_index

        def ours(of_all_ranks: Any) -> list[float | None]:
            last = list(of_all_ranks or ())[-ranks * count :]
            if len(last) < ranks * count:
                return [None] * count
            return [_finite(value) for value in last[rank * count : (rank + 1) * count]]

        weights = _weights(batch.trainer)
        rewards = {name: ours(values) for name, values in (logs.get("rewards") or {}).items()}
        advantages = ours(logs.get("advantages"))
        records = []
        rows = _rows_of(batch)
        for k, rollout in enumerate(rollouts):
            given = {name: values[k] for name, values in rewards.items()}
            records.append(
                score_record(
                    batch.run_id,
                    rollout.rollout_id,
                    given,
                    total=total_reward(given.values(), [weights.get(name, 1.0) for name in given]),
                    advantage=advantages[k],
                    rows=None if rows is None else rows.recorded_rows(k, advantages[k]),
                    padding_rows=None if rows is None else rows.padding_rows,
                )
            )
        self._write(records)

    def _follow(self, trainer: Any) -> None:
        """Register for the end of a step, an evaluation or training: no batch may follow."""
        if self._followed is trainer or not hasattr(trainer, "add_callback"):
            return
        from transformers import TrainerCallback

        collect, finish = self.collect, self._finish

        class Collect(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *_: Any, **__: Any) -> None:
                collect()

            def on_train_end(self, *_: Any, **__: Any) -> None:
                collect()
                finish()

            on_evaluate = on_predict = on_train_end

        trainer.add_callback(Collect())
        self._followed = trainer


def _rows_of(batch: _ScoredBatch) -> RowBatch | None:
    """Return the rows of these rollouts; None if the trainer has one row for each."""
    if not isinstance(batch.trainer, AllRows):
        return None
    kept = (batch.trainer.abut_rows, batch.trainer.abut_eval_rows)
    return next((rows for rows in kept if rows and rows.rollouts is batch.rollouts), None)


def _weights(trainer: Any) -> dict[str, float]:
    """Return the weight of each reward function, by its name in the logs."""
    names = getattr(trainer, "reward_func_names", None) or ()
    weights = getattr(trainer, "reward_weights", None)
    if weights is None:
        return {}
    return dict(zip(names, map(float, weights), strict=False))


def _completions(trainer: Any) -> list[Any]:
    logs = getattr(trainer, "_logs", None) or {}
    return list(logs.get("completion") or ())


def _is_scored(batch: _ScoredBatch) -> bool:
    now = _completions(batch.trainer)
    pairs = itertools.zip_longest(batch.before, now)
    return any(before is not after for before, after in pairs)


def _finite(value: Any) -> float | None:
    """Return a reward, or None instead of the NaN that TRL keeps for a missing one."""
    return float(value) if value is not None and math.isfinite(value) else None
