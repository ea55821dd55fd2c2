"""What `ep logs` shows of a training run.

Invariant: a log that cannot be written costs no rollout, and no loop that others wait for writes
it; what is kept is bounded, since the page's server sends its whole store at once.
"""

import logging
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

from abut.envs.task import RolloutTask
from abut.errors import text_of
from abut.eval_protocol.package import require_package
from abut.eval_protocol.scores import Score
from abut.eval_protocol.shown_row import ended_row, fitted
from abut.rollout.rollout import Rollout

logger = logging.getLogger(__name__)

SAMPLE = 8
"""So many rollouts of each batch have their tokens there, and are all that a sample has."""

_GIVES_UP = 3
_GIVEN_UP = "the batch was given up"
_MOST_WAITING = 4096
_STEP = re.compile(r"step-(\d+)")


class _Tokenizer(Protocol):
    def decode_bytes(self, ids: Sequence[int]) -> bytes: ...


class RowLog:
    """Writes rows of one test, on a thread of its own.

    Args:
        which: rollouts: "all", a "sample" of each batch, None of them.
        to: the test's own logger; None: the package's.
    """

    def __init__(self, which: Literal["all", "sample"] | None, to: Any = None) -> None:
        self._which = which
        self._to = to
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self._failed = 0
        self._said: set[str] = set()
        self._shown: set[str] = set()

    def running(self, row: Any, task: RolloutTask) -> None:
        """Show a rollout that begins."""
        if self._takes(task):
            self._shown.add(task.rollout_id)
            copy = row.model_copy(deep=True)
            copy.input_metadata.dataset_info = {
                **(copy.input_metadata.dataset_info or {}),
                "step": task.step,
                "group": task.group,
                "generation": task.place,
                "mode": task.mode,
            }
            self._later(lambda: copy)

    def ended(
        self,
        row: Any,
        task: RolloutTask,
        rollout: Rollout,
        score: Score | None,
        tokenizer: _Tokenizer,
    ) -> None:
        """Show what became of it; nobody changes what is given here any more."""
        self._shown.discard(task.rollout_id)
        if self._takes(task):
            decode = tokenizer.decode_bytes if task.index < SAMPLE else None
            self._later(lambda: ended_row(row, task, rollout, score, decode))

    def given_up(self, row: Any) -> None:
        """Show that nothing more becomes of a rollout that was shown."""
        if row.execution_metadata.rollout_id not in self._shown:
            return

        def make() -> Any:
            copy = row.model_copy(deep=True)
            copy.rollout_status = type(copy.rollout_status).rollout_error(_GIVEN_UP)
            copy.eval_metadata.status = type(copy.rollout_status).error(_GIVEN_UP)
            return copy

        self._later(make)

    def wait(self) -> None:
        """Wait until what was handed over is written, or cannot be."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _takes(self, task: RolloutTask) -> bool:
        if self._which is None or self._failed >= _GIVES_UP:
            return False
        return self._which == "all" or task.index < SAMPLE

    def _later(self, make: Callable[[], Any]) -> None:
        if not self._waiting.acquire(blocking=False):
            self._say(
                "waits", "more rows wait to be logged than the store takes: some are left out"
            )
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "abut-ep-log")
        self._pool.submit(self._write, make)

    def _write(self, make: Callable[[], Any]) -> None:
        try:
            if self._failed >= _GIVES_UP:
                return
            row, changed = fitted(make())
            if changed:
                self._say(
                    "fits",
                    f"ep logs could not show {', '.join(changed)} of a row, and would show none of "
                    "its store: it was cut to size or left out there; rewards are as they were",
                )
            self._logger().log(row)
            self._failed = 0
        except Exception as error:
            self._failed += 1
            self._say(
                "fails",
                f"a row could not be logged for ep logs, training goes on: {text_of(error)}",
            )
        finally:
            self._waiting.release()

    def _logger(self) -> Any:
        if self._to is not None:
            return self._to
        from eval_protocol.dataset_logger import default_logger

        return default_logger

    def _say(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            logger.warning("%s", text)


def prune_logs(*, keep_steps: int, experiment_id: str | None = None) -> int:
    """Take the rollouts of old steps out of the store of `ep logs`; returns how many.

    Args:
        keep_steps: so many of each run's latest steps stay.
        experiment_id: of one run; None: all runs. What no training has written stays.

    Raises:
        ValueError: `keep_steps` is negative.
        MissingExtraError: eval_protocol is not installed.
        OSError: the store cannot be written.
    """
    if keep_steps < 0:
        raise ValueError(f"keep_steps={keep_steps}: must be 0 or more")
    require_package()
    from eval_protocol.dataset_logger.sqlite_dataset_logger_adapter import (
        SqliteDatasetLoggerAdapter,
    )

    store = SqliteDatasetLoggerAdapter()._store
    runs: dict[str, list[tuple[int, str]]] = {}
    for data in store.read_rows():
        metadata = data.get("execution_metadata") or {}
        run, step = metadata.get("experiment_id"), _STEP.fullmatch(metadata.get("run_id") or "")
        if step is None or run is None or experiment_id not in (None, run):
            continue
        runs.setdefault(run, []).append((int(step[1]), metadata["rollout_id"]))
    pruned = 0
    for rows in runs.values():
        kept = sorted({number for number, _ in rows}, reverse=True)[:keep_steps]
        for number, rollout_id in rows:
            if number not in kept:
                pruned += store.delete_row(rollout_id)
    return pruned
