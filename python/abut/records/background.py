"""Writing beside training: nobody waits for the disk, and nothing is lost.

Invariant: what was handed over is written in its order, before the process ends; what could not be
written is raised by the next call.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from abut.pickling import stays
from abut.records.recorder import JsonlRecorder, ParquetRecorder
from abut.rollout.rollout import Rollout


@stays("it writes on a thread of this process", hint="make one there, of the same path")
class BackgroundRecorder:
    """Has a recorder write on a thread of its own."""

    def __init__(self, recorder: JsonlRecorder | ParquetRecorder) -> None:
        self._recorder = recorder
        # The interpreter ends only when its thread has nothing left to do.
        self._pool = ThreadPoolExecutor(1, "abut-records")
        self._batch: list[tuple[Rollout, dict[str, Any]]] = []
        self._last: Future[None] | None = None

    def write(self, rollout: Rollout, /, **extra: Any) -> None:
        """Keep one rollout of the batch, which nobody changes any more."""
        self._batch.append((rollout, extra))

    def flush(self) -> None:
        """Have the batch written.

        Raises:
            OSError: what was handed over before could not be.
        """
        batch, self._batch = self._batch, []
        self._then(lambda: self._write(batch))

    def write_scores(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Have scores written.

        Raises:
            OSError: what was handed over before could not be.
        """
        self._then(lambda: self._recorder.write_scores(records))

    def wait(self) -> None:
        """Wait until all is written.

        Raises:
            OSError: it could not be.
        """
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _write(self, batch: Sequence[tuple[Rollout, dict[str, Any]]]) -> None:
        errors: list[Exception] = []
        for rollout, extra in batch:
            try:
                self._recorder.write(rollout, **extra)
            except (TypeError, ValueError) as error:  # of this one: the others are written
                errors.append(error)
        if isinstance(self._recorder, ParquetRecorder):
            self._recorder.flush()
        if errors:
            raise errors[0]

    def _then(self, write: Callable[[], None]) -> None:
        before = self._last
        if before is not None and before.done():
            self._last = None
            before.result()
            before = None

        def after() -> None:
            if before is not None:
                before.result()  # its error is not forgotten
            write()

        self._last = self._pool.submit(after)
