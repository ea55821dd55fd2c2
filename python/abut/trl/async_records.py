"""The records of a run without batches: each group's rollouts and scores, when it has ended."""

import threading
from collections.abc import Callable
from typing import Any

from abut.records.background import BackgroundRecorder
from abut.records.record import score_record
from abut.records.recorder import Recorder
from abut.rollout.stream import Played
from abut.trl.async_scores import Scores


class AsyncRecords:
    """Writes to one recorder, whichever thread a group ends on.

    Args:
        recorder: keeps them.
        run_id: of this run.
        tokenizer: its name.
        step: the trainer's, where that is known.
    """

    def __init__(
        self, recorder: Recorder, *, run_id: str, tokenizer: str, step: Callable[[], int | None]
    ) -> None:
        self._recorder = recorder
        self._of_run = {"run_id": run_id, "rank": 0, "mode": "train", "tokenizer": tokenizer}
        self._run_id = run_id
        self._step = step
        self._flushed_at: int | None = None
        self._scores: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def write(self, played: Played, scores: Scores) -> None:
        """Keep a group. What was kept is flushed when the trainer has made a step.

        Raises:
            OSError: what was handed over before could not be written.
        """
        with self._lock:
            step = self._step()
            for k, (task, rollout) in enumerate(played):
                self._recorder.write(
                    rollout,
                    **self._of_run,
                    step=step,
                    group=task.group,
                    place=task.place,
                    seed=task.seed,
                    episode_seed=task.episode_seed,
                    columns=task.columns,
                )
                rewards = {name: values[k] for name, values in scores.by_function.items()}
                advantage = None if scores.rewards[k] is None else scores.advantages[k]
                self._scores.append(
                    score_record(
                        self._run_id,
                        rollout.rollout_id,
                        rewards,
                        total=scores.rewards[k],
                        advantage=advantage,
                    )
                )
            if step is None or step != self._flushed_at:
                self._flushed_at = step
                self._flush()

    def close(self) -> None:
        """Write what is left.

        Raises:
            OSError: it could not be written.
        """
        with self._lock:
            self._flush()
            if isinstance(self._recorder, BackgroundRecorder):
                self._recorder.wait()

    def _flush(self) -> None:
        if (flush := getattr(self._recorder, "flush", None)) is not None:
            flush()
        scores, self._scores = self._scores, []
        write_scores = getattr(self._recorder, "write_scores", None)
        if write_scores is not None and scores:
            write_scores(scores)
