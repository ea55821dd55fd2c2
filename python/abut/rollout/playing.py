"""The rollouts of one batch, begun together and waited for together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from abut.envs.task import RolloutTask
from abut.errors import RolloutError
from abut.rollout.batch import Batch
from abut.rollout.own_loop import OwnLoops
from abut.rollout.progress import Progress
from abut.rollout.rollout import Rollout

Play = Callable[[RolloutTask], Awaitable[Rollout]]


class Playing:
    """Has `play` play each task."""

    def __init__(
        self, batch: Batch, tasks: Sequence[RolloutTask], play: Play, progress: Progress
    ) -> None:
        self._batch = batch
        self._tasks = tasks
        self._play = play
        self._progress = progress

    def expected(self) -> int:
        """How many have not ended."""
        return len(self._tasks) - len(self._batch.ended)

    async def run(self) -> list[Rollout]:
        """Play them all; on the loop of the batch."""
        batch, slots = self._batch, asyncio.Semaphore(self._batch.at_once)
        async with batch.open() as stack:
            own_loops = OwnLoops(batch, stack)
            for task in self._tasks:
                await own_loops.host(task)
            playing = [asyncio.ensure_future(self._play_one(task, slots)) for task in self._tasks]
            try:
                rollouts = list(await asyncio.gather(*playing))
                await own_loops.settle(list(zip(self._tasks, rollouts, strict=True)))
                return rollouts
            finally:
                batch.closing.gives_up = True
                for rollout in playing:
                    rollout.cancel()
                await asyncio.gather(*playing, return_exceptions=True)

    async def _play_one(self, task: RolloutTask, slots: asyncio.Semaphore) -> Rollout:
        async with slots:
            rollout = await self._play(task)
        self._batch.ended.append(rollout)
        self._progress.add(rollout)
        raise_if_it_must(self._batch, task, rollout)
        return rollout


def raise_if_it_must(batch: Batch, task: RolloutTask, rollout: Rollout) -> None:
    """Raise what a rollout failed of, where `on_failure` says so.

    Raises:
        RolloutError: it failed.
    """
    if rollout.failed and batch.config.on_failure == "raise":
        raise RolloutError(
            f"rollout {task.rollout_id} failed after {rollout.attempts} attempts: {rollout.error}"
        ) from batch.failures.cause_of(rollout.error)
