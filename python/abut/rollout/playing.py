"""The rollouts of one batch, begun together and waited for together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from abut.envs.task import RolloutTask
from abut.errors import RolloutError
from abut.rollout.batch import Batch
from abut.rollout.player import OpenPlayers
from abut.rollout.rollout import Rollout

Play = Callable[[RolloutTask], Awaitable[Rollout]]


class Playing:
    """Has `play` play each task."""

    def __init__(
        self, batch: Batch, tasks: Sequence[RolloutTask], play: Play, progress: "ProgressBar"
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
            players = OpenPlayers(batch, stack)
            for task in self._tasks:
                await players.host(task)
            playing = [asyncio.ensure_future(self._play_one(task, slots)) for task in self._tasks]
            try:
                rollouts = list(await asyncio.gather(*playing))
                await players.settle(list(zip(self._tasks, rollouts, strict=True)))
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


class ProgressBar:
    """`rollouts 37/64 · turns 142 · failed 1`."""

    def __init__(self, total: int, enabled: bool) -> None:
        self._bar: Any = None
        self._total = total
        self._ended = self._turns = self._failed = 0
        if enabled:
            from tqdm.auto import tqdm

            form = "{desc} |{bar}| {elapsed}"
            self._bar = tqdm(
                total=total, desc=self.text, bar_format=form, leave=False, disable=None
            )

    @property
    def text(self) -> str:
        """What stands beside the bar; the turns are those of rollouts that ended."""
        return f"rollouts {self._ended}/{self._total} · turns {self._turns} · failed {self._failed}"

    def add(self, rollout: Rollout) -> None:
        """Count a rollout that ended."""
        self._ended += 1
        self._turns += len(rollout.turns)
        self._failed += rollout.failed
        if self._bar is not None:
            self._bar.set_description_str(self.text, refresh=False)
            self._bar.update()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
