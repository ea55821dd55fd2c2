"""Players of rollouts, used instead of environments: agents, which run their own loop."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol, TypeAlias

from abut.concurrency.clock import TimeLimit
from abut.concurrency.loop import LoopTasks
from abut.envs.task import RolloutPlayer, RolloutTask
from abut.rollout.batch import Batch
from abut.rollout.rollout import Rollout

Played: TypeAlias = Sequence[tuple[RolloutTask, Rollout]]
"""The rollouts of a group, in the order of its tasks."""


class AnyEpisode(Protocol):
    """One attempt at a rollout, by an environment or an agent."""

    rollout: Rollout

    @property
    def request_id(self) -> str:
        """The `rollout_id` of its requests for samples."""
        ...

    @property
    def may_have_clashed(self) -> bool:
        """True if others may have caused a failure, which then does not count as a retry."""
        ...

    async def run(self, clock: TimeLimit) -> Rollout:
        """Play the attempt to its end, like `Episode.run`."""
        ...

    def spared_s(self) -> float:
        """The seconds of the attempt that do not count, because others delayed it."""
        ...

    def end(self) -> None:
        """End the attempt, in any state."""
        ...

    def where(self) -> str:
        """The line of foreign code that is executing, for errors."""
        ...

    def as_failed(self, error: str) -> Rollout:
        """Return a failed rollout, with everything that was played."""
        ...


class AgentPlayer(RolloutPlayer, ABC):
    """Plays rollouts instead of an environment: an agent and its gateway."""

    def loop(self) -> LoopTasks | None:
        """Start and return the loop on which its batches run best; None: the batch's own loop.

        If several players have one, the batch runs on the loop of the first task's player.
        """
        return None

    @abstractmethod
    def for_batch(self, batch: Batch) -> AbstractAsyncContextManager[None]:
        """Return a context manager for a batch, entered and exited on the loop of the batch."""

    @abstractmethod
    def episode(self, batch: Batch, task: RolloutTask, attempt: int) -> AnyEpisode:
        """Return one attempt at a task."""

    async def settle(self, batch: Batch, played: Played) -> None:
        """Score the rollouts that it has played, of a batch or of a group of a stream.

        Called when all of them have ended.
        """
        return


def player_of(task: RolloutTask) -> AgentPlayer | None:
    """Return the player of the task; None if an environment is played."""
    return task.source if isinstance(task.source, AgentPlayer) else None


class OpenPlayers:
    """The agent players of one batch, each entered before its first rollout.

    Args:
        batch: on whose loop all of this is called.
        stack: exits them.
    """

    def __init__(self, batch: Batch, stack: AsyncExitStack) -> None:
        self._batch = batch
        self._stack = stack
        self._entered: dict[int, AgentPlayer] = {}

    async def open(self, task: RolloutTask) -> None:
        """Enter the player of this task, if it has one."""
        player = player_of(task)
        if player is not None and id(player) not in self._entered:
            self._entered[id(player)] = player
            await self._stack.enter_async_context(player.for_batch(self._batch))

    async def settle(self, played: Played) -> None:
        """Let each player score its rollouts together."""
        for id_, player in self._entered.items():
            own = [pair for pair in played if id(pair[0].source) == id_]
            if own:
                await player.settle(self._batch, own)


def loop_of_players(tasks: Sequence[RolloutTask]) -> LoopTasks | None:
    """Return the loop of the first player of these tasks that has one; None without one."""
    for task in {id(task.source): task for task in tasks}.values():
        player = player_of(task)
        if player is not None and (loop := player.loop()) is not None:
            return loop
    return None
