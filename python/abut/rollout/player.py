"""What plays rollouts, as the engine sees it: attempts, and what makes them in an Env's place."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol

from abut.concurrency.clock import TimeLimit
from abut.concurrency.loop import LoopTasks
from abut.envs.task import RolloutTask
from abut.rollout.batch import Batch
from abut.rollout.rollout import Rollout


class AnyEpisode(Protocol):
    """One attempt at a rollout."""

    rollout: Rollout

    @property
    def request_id(self) -> str:
        """What its requests for samples bear as `rollout_id`."""
        ...

    async def run(self, clock: TimeLimit) -> Rollout:
        """Play it to its end, as `Episode.run` does."""
        ...

    def spared_s(self) -> float:
        """How much of the attempt's time does not count, because others held it up."""
        ...

    def end(self) -> None:
        """End it, whatever became of it."""
        ...

    def where(self) -> str:
        """Where foreign code is that takes long."""
        ...

    def failed(self, error: str) -> Rollout:
        """What there is of a rollout that failed."""
        ...


class AgentPlayer(ABC):
    """What plays a rollout itself, in the place of an environment: an agent behind its gateway."""

    def loop(self) -> LoopTasks | None:
        """The loop on which its batches run best, which it starts; None: that of the batch.

        Where several have one, it is that of the first task's.
        """
        return None

    @abstractmethod
    def for_batch(self, batch: Batch) -> AbstractAsyncContextManager[None]:
        """Entered before a batch, on its loop, and left after it."""

    @abstractmethod
    def episode(self, batch: Batch, task: RolloutTask, attempt: int) -> AnyEpisode:
        """One attempt at a task."""

    async def settle(self, batch: Batch, played: Sequence[tuple[RolloutTask, Rollout]]) -> None:
        """Called when all rollouts of a batch, or of a group of a stream, have ended.

        With those that this has played.
        """
        return


class OpenPlayers:
    """Those of one batch, each entered before its first rollout.

    Args:
        batch: on whose loop all of this is called.
        stack: leaves them.
    """

    def __init__(self, batch: Batch, stack: AsyncExitStack) -> None:
        self._batch = batch
        self._stack = stack
        self._entered: dict[int, AgentPlayer] = {}

    async def host(self, task: RolloutTask) -> None:
        """Have what plays this task ready, where that is more than an environment."""
        played: Any = task.make_env
        if isinstance(played, AgentPlayer) and id(played) not in self._entered:
            self._entered[id(played)] = played
            await self._stack.enter_async_context(played.for_batch(self._batch))

    async def settle(self, played: Sequence[tuple[RolloutTask, Rollout]]) -> None:
        """Have whatever played these rollouts itself score what takes more than one of them."""
        for id_, player in self._entered.items():
            own = [pair for pair in played if id(pair[0].make_env) == id_]
            if own:
                await player.settle(self._batch, own)


def loop_of_players(tasks: Sequence[RolloutTask]) -> LoopTasks | None:
    """The loop of whatever plays one of these tasks itself; None where nothing has one."""
    for task in {id(task.make_env): task for task in tasks}.values():
        played: Any = task.make_env
        if isinstance(played, AgentPlayer) and (loop := played.loop()) is not None:
            return loop
    return None
