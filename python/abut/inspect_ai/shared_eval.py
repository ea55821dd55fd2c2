"""The one eval that the Inspect tasks of a batch share, fed while it runs.

Invariant: Inspect lets a process run one eval at a time, so tasks that play at once are tasks of
one eval, each with a log of its own. A task gets a copy of a sample for each attempt, under the
sample's id and an epoch that no other attempt has.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any, NamedTuple

from inspect_ai import SampleSource, TaskSource, enqueue_sample, enqueue_task, eval_async
from inspect_ai.log import EvalLog, EvalSample
from inspect_ai.model import Model
from inspect_ai.solver import solver
from inspect_ai.util._display import init_display_type

from abut.envs.signatures import UnplayableRow
from abut.errors import text_of
from abut.inspect_ai.policy_api import SampleAttempt

logger = logging.getLogger(__name__)

BATCH, ENVIRONMENT = "abut_batch", "abut_environment"
"""Metadata of a log: the number of the task's batch, and the task's name here."""

_MAX_TASKS = 64
_MAX_SAMPLES = 100_000
_STOP_S = 60.0
_CANCEL_S = 10.0

FeedKey = tuple[str, int]
"""A task's name and the number of its batch."""


class LogFolder(NamedTuple):
    """Where the logs of an eval are written.

    Attributes:
        path: a folder, or a URL such as `s3://…`.
        samples: True if the logs hold samples.
    """

    path: str
    samples: bool


class TaskFeed:
    """Feeds one task of the eval with samples.

    Args:
        key: distinguishes the task from others in this process.

    Attributes:
        ready: resolves to the task's context, in which samples are enqueued.
        ended: resolves to the error that ended the task, or to None.
    """

    def __init__(self, key: FeedKey) -> None:
        loop = asyncio.get_running_loop()
        self.key = key
        self.ready: asyncio.Future[Context] = loop.create_future()
        self.ended: asyncio.Future[str | None] = loop.create_future()
        self._more = asyncio.Event()
        self._is_over = False
        self._epochs = Counter[str | int]()
        self._attempts: dict[tuple[str | int, int], SampleAttempt] = {}

    def source(self) -> SampleSource:
        """Return the task's dataset."""
        return SampleSource.from_samples(
            [],
            next_samples=self._next,
            sample_complete=self._complete,
            sample_abandoned=self._abandoned,
        )

    def setup(self) -> Any:
        """Return a solver that runs before the task's own and routes the calls of its sample."""

        @solver(name="abut_rollout")  # type: ignore[untyped-decorator]
        def abut_rollout() -> Any:
            async def solve(state: Any, generate: Any) -> Any:
                self._attempts[state.sample_id, state.epoch].begin()
                return state

            return solve

        return abut_rollout()

    async def play(self, sample: Any, attempt: SampleAttempt) -> EvalSample:
        """Play a sample, and return the logged sample.

        Args:
            sample: a copy of the sample, with its id; this method keeps it.
            attempt: answers the sample's calls.

        Raises:
            UnplayableRow: the eval has ended, or Inspect abandoned the sample.
        """
        self._epochs[sample.id] += 1
        epoch = self._epochs[sample.id]
        self._attempts[sample.id, epoch] = attempt
        self.ready.result().run(enqueue_sample, sample, epoch=epoch)
        self._more.set()
        try:
            await asyncio.wait({attempt.ended, self.ended}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            attempt.give_up()
            raise
        if not attempt.ended.done():
            raise UnplayableRow(f"{self.key[0]}: the eval ended early: {self.ended.result()}")
        played = attempt.ended.result()
        if played is None:
            raise UnplayableRow(f"{self.key[0]}: sample {sample.id!r} was cancelled in Inspect")
        return played

    def close(self) -> None:
        """Let the task end, and write its log, once its samples have ended."""
        self._is_over = True
        self._more.set()

    async def _next(self) -> list[Any] | None:
        """Wait for samples; Inspect calls this when none plays, and starts them when it returns."""
        if not self.ready.done():
            self.ready.set_result(copy_context())
        await self._more.wait()
        self._more.clear()
        return None if self._is_over else []

    async def _complete(self, played: EvalSample) -> None:
        self._settle((played.id, played.epoch), played)

    async def _abandoned(self, sample: Any, epoch: int) -> None:
        self._settle((sample.id, epoch), None)

    def _settle(self, key: tuple[str | int, int], played: EvalSample | None) -> None:
        attempt = self._attempts.pop(key)
        if not attempt.ended.done():
            attempt.ended.set_result(played)


class SharedEval:
    """An eval of this process, from the first task that joins it until the last one leaves.

    Args:
        folder: the folder for logs.
        model: the policy.

    Attributes:
        folder: the argument.
        loop: the event loop of the eval.
        feeds: the feeds of the tasks that have not left, by key.
    """

    def __init__(self, folder: LogFolder, model: Model) -> None:
        self.folder = folder
        self.loop = asyncio.get_running_loop()
        self._model = model
        self._lock = asyncio.Lock()
        self.feeds: dict[FeedKey, TaskFeed] = {}
        self._context: Context | None = None
        self._over = asyncio.Event()
        self._eval: asyncio.Task[Any] | None = None

    @property
    def is_over(self) -> bool:
        """True once tasks can no longer join."""
        return self._over.is_set()

    @property
    def has_ended(self) -> bool:
        """True once Inspect can run another eval."""
        return self._eval is not None and self._eval.done()

    async def join(self, feed: TaskFeed, make_task: Callable[[], Any]) -> None:
        """Start a task, and the eval with the first task; wait until the task takes samples.

        Raises:
            UnplayableRow: the task cannot start; the error says why.
        """
        async with self._lock:
            task = make_task()
            if self._context is None:
                init_display_type("none")  # the process's, which INSPECT_DISPLAY sets only once
                level = logging.getLogger().level
                self._eval = self.loop.create_task(self._run(task))
            else:
                self._context.run(enqueue_task, task)
            assert self._eval is not None
            waits = {self._eval, feed.ready, feed.ended}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not feed.ready.done():
                raise UnplayableRow(f"{feed.key[0]} cannot start: {self._why_ended(feed)}")
            if self._context is None:
                self._context = feed.ready.result()
                # Inspect has set its own level, which would hide the user's log messages.
                logging.getLogger().setLevel(level)

    async def leave(self, feed: TaskFeed) -> None:
        """End a task, and the eval with the last task; return when the logs are written."""
        feed.close()
        self.feeds.pop(feed.key, None)
        if self.feeds:
            return
        self._over.set()
        await self.end(_STOP_S)

    async def end(self, seconds: float) -> None:
        """Wait up to `seconds` for the eval to end, then cancel it."""
        running = self._eval
        if running is None or running.done():
            return
        await asyncio.wait({running}, timeout=seconds)
        if running.done():
            return
        logger.warning("an eval of Inspect did not end within %g s, so abut cancels it", seconds)
        running.cancel()
        await asyncio.wait({running}, timeout=_CANCEL_S)

    async def _run(self, task: Any) -> None:
        """Run the eval, and tell its tasks the error that ends it."""
        why = "it was cancelled"
        try:
            # abut retries each failed rollout. Inspect's own rules would end the whole task.
            await eval_async(
                TaskSource.from_tasks(
                    [task], next_tasks=self._wait_until_over, task_complete=self._task_complete
                ),
                model=self._model,
                log_dir=self.folder.path,
                log_samples=self.folder.samples,
                log_realtime=False,
                fail_on_error=False,
                continue_on_fail=True,
                retry_on_error=0,
                max_samples=_MAX_SAMPLES,
                max_tasks=_MAX_TASKS,
                score_display=False,
                ctl_server=False,
                acp_server=False,
            )
            why = "the eval has ended"
        except Exception as error:
            why = text_of(error)
            if isinstance(error, RuntimeError) and "oncurrent calls to eval_async" in why:
                why = (
                    "this process already runs an eval of Inspect, and Inspect allows only one at "
                    "a time\n"
                    "hint: run the other eval before or after training, or in another process"
                )
        finally:
            for feed in self.feeds.values():
                if not feed.ended.done():
                    feed.ended.set_result(why)

    async def _wait_until_over(self) -> None:
        await self._over.wait()

    async def _task_complete(self, log: EvalLog) -> None:
        # Not `log.samples`: reading them patches asyncio for the whole process.
        metadata: Mapping[str, Any] = log.eval.metadata or {}
        feed = self.feeds.get((metadata[ENVIRONMENT], metadata[BATCH]))
        if feed is not None and not feed.ended.done():
            feed.ended.set_result(None if log.error is None else log.error.message)

    @staticmethod
    def _why_ended(feed: TaskFeed) -> str:
        return (feed.ended.result() if feed.ended.done() else None) or "the eval has ended"


_lock = threading.Lock()
_current: SharedEval | None = None


async def claim_eval(feed: TaskFeed, folder: LogFolder, model: Model) -> SharedEval:
    """Return the eval of this process, for a task to join.

    Args:
        feed: the feed of the task, which must call `leave` at its end.
        folder: the folder for logs.
        model: the policy; used if this is the first task.

    Raises:
        UnplayableRow: the running eval cannot take the task.
    """
    global _current
    loop = asyncio.get_running_loop()
    while True:
        with _lock:
            if _current is None or _current.has_ended:
                _current = SharedEval(folder, model)
            running = _current
        if running.loop is not loop:
            raise UnplayableRow(
                f"{feed.key[0]} cannot start: another batch of this process plays tasks of "
                "Inspect, and Inspect allows only one eval at a time\n"
                "hint: play the batches one after the other, or in separate processes"
            )
        if not running.is_over:
            break
        await running.end(_CANCEL_S)  # an interrupted batch left it
        if not running.has_ended:
            raise UnplayableRow(
                f"{feed.key[0]} cannot start: the eval of the previous batch does not end\n"
                "hint: check whether one of its tools or solvers ignores cancellation"
            )
    if running.folder != folder:
        raise UnplayableRow(
            f"{feed.key[0]} cannot start: it logs to {folder.path}, but another task of the batch "
            f"logs to {running.folder.path}\nhint: give both the same log_dir"
        )
    running.feeds[feed.key] = feed
    return running
