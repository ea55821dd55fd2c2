"""The continuous mode: groups of tasks, played one after the other as slots get free.

Invariant: whatever becomes of its rollouts, every group whose members have all ended is handed over
once, whole; and none begins while as many as there are slots wait to be handed over, so that
nothing is played for ever that nobody takes.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeAlias

from abut.concurrency.threads import THREADS
from abut.envs.task import RolloutTask
from abut.rollout.batch import Batch
from abut.rollout.failures import Failures
from abut.rollout.player import OpenPlayers
from abut.rollout.playing import Play, raise_if_it_must
from abut.rollout.rollout import Rollout

Played: TypeAlias = Sequence[tuple[RolloutTask, Rollout]]
"""The rollouts of a group, in the order of its tasks."""

Deliver: TypeAlias = Callable[[Batch, Played], Awaitable[None]]


class Stream:
    """Plays what an endless iterator has, until it is stopped.

    Args:
        groups: the tasks of one group after the other; asked on a thread, since what makes them may
            take long. Where it ends, the stream ends with it.
        deliver: gets each group that has ended, on the loop of the batch; groups that end at once
            are delivered at once. While it waits, other rollouts go on.
        at_once: so many rollouts are in flight at the most, where the config does not say.
        judged: of so many rollouts together it is judged whether too many failed.
        begin: called on the loop of the batch before anything is delivered; what it waits for
            holds nothing up.
        version: of the weights that sample; None: nobody counts them.
        max_staleness: a rollout whose oldest weights are more versions behind is ended; None: none
            is.
    """

    def __init__(
        self,
        groups: Iterator[Sequence[RolloutTask]],
        deliver: Deliver,
        *,
        at_once: int,
        judged: int,
        begin: Callable[[], Coroutine[Any, Any, None]] | None = None,
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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._over: asyncio.Future[None] | None = None
        """Done where it is stopped; holds what it failed of."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._undelivered = 0
        self._delivered = asyncio.Event()
        self._ended: list[Rollout] = []
        """Since it was last judged."""
        self._batch: Batch | None = None

    # ---- from any thread

    def stop(self) -> None:
        """End it: what plays is cancelled."""
        self._stopped = True
        self._soon(self._end)

    def update_version(self, version: int) -> None:
        """Say that other weights sample from now on; ends what is too old by then."""
        self.version = version
        self._soon(self._update)

    def ping(self, pong: Callable[[], object]) -> None:
        """Have its loop call `pong`, which it does unless something blocks it."""
        self._soon(pong)

    def _soon(self, call: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(call)
            except RuntimeError:  # it has ended
                self._loop = None

    # ---- on the loop of the batch

    async def run(self, batch: Batch, play: Play) -> None:
        """Play until it is stopped, or something fails."""
        self._batch, self._loop = batch, asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._update()
        async with batch.open() as stack:
            players = OpenPlayers(batch, stack)
            if self._begin is not None:
                self._start(self._begin())
            feeding = self._start(self._feed(batch, play, players))
            try:
                if not self._stopped:
                    await asyncio.wait({feeding, self._over}, return_when=asyncio.FIRST_COMPLETED)
                    while self._tasks and not self._over.done():  # the tasks have come to an end
                        waits = {*self._tasks, self._over}
                        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                batch.closing.gives_up = True
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._over.done():
            self._over.result()

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _update(self) -> None:
        if self._batch is not None and self.version is not None:
            self._batch.attempts.update(self.version)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._look_at)
        return task

    def _look_at(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)

    async def _feed(self, batch: Batch, play: Play, players: OpenPlayers) -> None:
        """Begin one rollout after the other, each as soon as it has a slot."""
        slots = asyncio.Semaphore(batch.at_once)
        end: Sequence[RolloutTask] = ()
        while len(tasks := await THREADS.ask(lambda: next(self._groups, end))):
            group: dict[int, Rollout] = {}
            for k in range(len(tasks)):
                await slots.acquire()
                while self._undelivered >= batch.at_once:  # while it waited for a slot, too
                    self._delivered.clear()
                    await self._delivered.wait()
                await players.host(tasks[k])
                ended = functools.partial(self._ended_one, batch, players, tasks, group, k)
                self._start(self._play_one(play, slots, tasks[k], ended))

    async def _play_one(
        self,
        play: Play,
        slots: asyncio.Semaphore,
        task: RolloutTask,
        ended: Callable[[Rollout], Awaitable[None]],
    ) -> None:
        try:
            rollout = await play(task)
        finally:
            slots.release()
        await ended(rollout)

    async def _ended_one(
        self,
        batch: Batch,
        players: OpenPlayers,
        tasks: Sequence[RolloutTask],
        group: dict[int, Rollout],
        k: int,
        rollout: Rollout,
    ) -> None:
        """Note that the k-th of a group has ended; the last of them hands over the group."""
        group[k] = rollout
        self._judge(batch, tasks[k], rollout)
        if len(group) < len(tasks):
            return
        self._undelivered += len(tasks)
        try:
            rollouts = [group[k] for k in range(len(tasks))]
            most = batch.config.max_env_turns
            batch.notices.ended(rollouts, tasks, budget=batch.budget(), max_turns=most)
            batch.notices.cut(rollouts, budget=batch.budget())
            played = list(zip(tasks, rollouts, strict=True))
            await players.settle(played)
            await self._deliver(batch, played)
        finally:
            self._undelivered -= len(tasks)
            self._delivered.set()

    def _judge(self, batch: Batch, task: RolloutTask, rollout: Rollout) -> None:
        """Raise where too many failed: of so many, not of all, which an early fault would hide in.

        Raises:
            RolloutError: more than may, or one where none may.
        """
        raise_if_it_must(batch, task, rollout)
        self._ended.append(rollout)
        if len(self._ended) < self._judged:
            return
        ended, self._ended = self._ended, []
        failures: Failures = batch.failures
        batch.failures = failures.anew()
        failures.judge([failures.tally(ended)], batch.config.max_failed_frac)
