"""What plays rollouts, as the engine sees it: attempts, and what makes them in an Env's place."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from abut.envs.task import RolloutTask
from abut.rollout.rollout import Rollout

if TYPE_CHECKING:
    from abut.rollout.batch import Batch


class AnyEpisode(Protocol):
    """One attempt at a rollout."""

    rollout: Rollout

    @property
    def request_id(self) -> str:
        """What its requests for samples bear as `rollout_id`."""
        ...

    async def run(self, clock: asyncio.Timeout) -> Rollout:
        """Play it to its end, as `Episode.run` does."""
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


class OwnLoop(ABC):
    """What plays a rollout itself, in the place of an environment: an agent behind its gateway."""

    @abstractmethod
    def for_batch(self, batch: "Batch") -> AbstractAsyncContextManager[None]:
        """Entered before a batch, on its loop, and left after it."""

    @abstractmethod
    def episode(self, batch: "Batch", task: RolloutTask, attempt: int) -> AnyEpisode:
        """One attempt at a task."""

    async def settle(self, batch: "Batch", played: Sequence[tuple[RolloutTask, Rollout]]) -> None:
        """Called when all rollouts of a batch, or of a group of a stream, have ended.

        With those that this has played.
        """
        return
