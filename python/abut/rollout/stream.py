"""A stream of rollouts: groups of tasks, started one after the other as slots get free.

A batch is a stream of known length, with one group.

Invariant: each group is delivered once, as a whole, when all of its rollouts have ended, however
they ended. While as many rollouts wait for delivery as there are slots, no rollout begins, so a
slow consumer pauses the stream instead of filling the memory.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeAlias

from abut.concurrency.threads import THREADS
from abut.envs.task import RolloutTask
from abut.errors import RolloutError
from abut.rollout.batch import Batch
from abut.rollout.episode import play_rollout
from abut.rollout.player import OpenPlayers, Played
from abut.rollout.progress import Progress
from abut.rollout.rollout import Rollout

Deliver: TypeAlias = Callable[[Batch, Played], Awaitable[None]]
Finish: TypeAlias = Callable[[RolloutTask, Rollout], Awaitable[str | None]]
"""Completes a rollout that has ended; returns a description of what was lost, or None."""
Finishing: TypeAlias = Callable[[], AbstractAsyncContextManager[Finish]]


class Stream:
    """Plays the groups of an iterator, until it ends or the stream is stopped.

    Args:
        groups: the tasks of one group after the other. The iterator runs on a thread, because
            making tasks may take long. The stream ends with the iterator, or at an empty group.
        deliver: gets each group that has ended, on the loop of the batch; groups that end at the
            same time are delivered concurrently. While it waits, other rollouts continue.
        at_once: the most rollouts in flight, if the config does not say.
        judged: raise if too many of each `judged` rollouts failed; None leaves that to the caller.
        begin: called on the loop of the batch before anything is delivered; rollouts do not wait
            for it.
        ended: called with each rollout that has ended, on the loop of the batch.
        finishing: entered on the loop of the batch before anything plays. The yielded function is
            then awaited with each rollout, which keeps its slot until then. So a slow step, such as
            scoring by a teacher, slows down playing. A rollout of which something was lost is
            judged as failed. An exception ends the stream.
        progress: counts the rollouts; None: only the log has progress, see
            `RolloutConfig.log_every_s`.
        version: of the weights that sample; None if versions are not counted.
        max_staleness: a rollout is ended if its oldest weights are more than this many versions
            old; None: never.
    """

    def __init__(
        self,
        groups: Iterator[Sequence[RolloutTask]] | Sequence[Sequence[RolloutTask]],
        deliver: Deliver,
        *,
        at_once: int,
        judged: int | None,
        begin: Callable[[], Coroutine[Any, Any, None]] | None = None,
        ended: Callable[[Rollout], None] | None = None,
        finishing: Finishing | None = None,
        progress: Progress | None = None,
        version: int | None = None,
        max_staleness: int | None = None,
    ) -> None:
        self.at_once = at_once
        self.version = version
        self.max_staleness = max_staleness
        self._groups = groups
        self._deliver = deliver
        self._judged = judged
        self._begin = begin
        self._on_ended = ended
        self._finishing = finishing
        self._finish: Finish | None = None
        self._progress = progress
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._finished: asyncio.Future[None] | None = None
        """Done once the stream has ended or was stopped; holds the error that ended it."""
        self._opening: asyncio.Task[Any] | None = None
        """The task that opens the sampler and the players, while it runs."""
        self._running: set[asyncio.Task[None]] = set()
        self._undelivered = 0
        self._delivered = asyncio.Event()
        self._unjudged: list[Rollout] = []
        self._batch: Batch | None = None

    # ---- from any thread

    def stop(self) -> None:
        """End the stream, and cancel the rollouts."""
        self._stopped = True
        self._call_soon(self._end)

    def update_version(self, version: int) -> None:
        """Note that new weights sample from now on, and end rollouts that have become too old."""
        self.version = version
        self._call_soon(self._update)

    def ping(self, pong: Callable[[], object]) -> None:
        """Call `pong` on its loop, which works unless something blocks the loop."""
        self._call_soon(pong)

    def _call_soon(self, call: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(call)
            except RuntimeError:  # it has ended
                self._loop = None

    # ---- on the loop of the batch

    async def play(self, batch: Batch) -> None:
        """Open everything, play until the end, a stop or an error, and settle what is running."""
        self._batch, self._loop = batch, asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        self._update()
        async with AsyncExitStack() as stack:
            if not await self._has_opened(batch, stack):
                return
            players = OpenPlayers(batch, stack)
            if self._progress is None:
                self._progress = Progress(None, log_every_s=batch.config.log_every_s)
            # Not among those that run: the stream has ended when nothing else does.
            lines = asyncio.ensure_future(self._progress.log())
            try:
                if self._begin is not None:
                    self._start(self._begin())
                self._start(self._feed(batch, players))
                await self._finished
            finally:
                lines.cancel()
                batch.closing.gives_up = True
                for task in self._running:
                    task.cancel()
                await asyncio.gather(*self._running, return_exceptions=True)

    async def _has_opened(self, batch: Batch, stack: AsyncExitStack) -> bool:
        """Open the sampler and the players; return False if the stream was stopped first.

        Opening may wait minutes for a server that is down, and a stop must not wait for that.
        """
        self._opening = asyncio.current_task()
        try:
            if not self._stopped:
                await stack.enter_async_context(batch.sampler.on_batch_loop())
                if self._finishing is not None:
                    self._finish = await stack.enter_async_context(self._finishing())
        except asyncio.CancelledError:
            if not self._stopped or self._opening is None or self._opening.uncancel():
                raise
        finally:
            self._opening = None
        return not self._stopped

    def _end(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    def _update(self) -> None:
        if self._batch is not None and self.version is not None:
            self._batch.attempts.update(self.version)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        """End the stream at the first error, or when all rollouts have ended."""
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if self._finished is None or self._finished.done():
            return
        if error is not None:
            self._finished.set_exception(error)
        elif task.cancelled():  # not by this stream, so it cannot continue
            self._finished.cancel()
        elif not self._running:
            self._end()

    async def _feed(self, batch: Batch, players: OpenPlayers) -> None:
        """Start one rollout after the other, each as soon as it has a slot."""
        slots = asyncio.Semaphore(batch.at_once)
        async for tasks in self._each_group():
            group = _Group(tasks)
            for task in tasks:
                await players.open(task)
            for number in range(len(tasks)):
                await slots.acquire()
                # After the wait for a slot, because more groups may have ended meanwhile.
                while self._undelivered >= batch.at_once:
                    self._delivered.clear()
                    await self._delivered.wait()
                self._start(self._play_one(batch, players, slots, group, number))

    async def _each_group(self) -> AsyncIterator[Sequence[RolloutTask]]:
        groups, end = self._groups, ()
        if isinstance(groups, Sequence):
            for tasks in groups:
                yield tasks
            return
        while len(tasks := await THREADS.ask(lambda: next(groups, end))):
            yield tasks

    async def _play_one(
        self,
        batch: Batch,
        players: OpenPlayers,
        slots: asyncio.Semaphore,
        group: "_Group",
        number: int,
    ) -> None:
        """Play a rollout; the last rollout of a group delivers the group."""
        assert self._progress is not None
        task = group.tasks[number]
        try:
            with self._progress.plays(task.rollout_id):
                rollout = await play_rollout(batch, task)
            self._progress.add(rollout)
            if self._on_ended is not None:
                self._on_ended(rollout)
            if self._finish is not None:
                lost = await self._finish(task, rollout)
                if lost is not None:
                    batch.failures.lose(rollout.rollout_id, lost)
        finally:
            slots.release()
        self._judge(batch, task, rollout)
        if group.add(number, rollout):
            await self._settle(batch, players, group.played)

    async def _settle(self, batch: Batch, players: OpenPlayers, played: Played) -> None:
        self._undelivered += len(played)
        try:
            rollouts = [rollout for _, rollout in played]
            tasks, budget = [task for task, _ in played], batch.budget()
            most = batch.config.max_env_turns
            batch.warnings.ended(rollouts, tasks, budget=budget, max_turns=most)
            batch.warnings.cut(rollouts, budget=budget)
            await players.settle(played)
            await self._deliver(batch, played)
        finally:
            self._undelivered -= len(played)
            self._delivered.set()

    def _judge(self, batch: Batch, task: RolloutTask, rollout: Rollout) -> None:
        """Raise if too many of the latest rollouts failed.

        Only the latest count, because among all rollouts a late fault would go unnoticed.

        Raises:
            RolloutError: too many rollouts failed.
        """
        if rollout.failed and batch.config.on_failure == "raise":
            raise RolloutError(
                f"rollout {task.rollout_id} failed after {rollout.attempts} attempts: "
                f"{rollout.error}"
            ) from batch.failures.cause_of(rollout.error)
        if self._judged is None:
            return
        self._unjudged.append(rollout)
        if len(self._unjudged) < self._judged:
            return
        ended, self._unjudged = self._unjudged, []
        failures = batch.failures
        batch.failures = failures.next()
        failures.judge([failures.tally(ended)], batch.config.max_failed_frac)


class _Group:
    """The tasks of a group, and the rollouts that have ended."""

    def __init__(self, tasks: Sequence[RolloutTask]) -> None:
        self.tasks = tasks
        self._rollouts: dict[int, Rollout] = {}

    def add(self, number: int, rollout: Rollout) -> bool:
        """Note that a rollout has ended; return whether it was the last."""
        self._rollouts[number] = rollout
        return len(self._rollouts) == len(self.tasks)

    @property
    def played(self) -> Played:
        """The rollouts in the order of their tasks."""
        return [(task, self._rollouts[number]) for number, task in enumerate(self.tasks)]
