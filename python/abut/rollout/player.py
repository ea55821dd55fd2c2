"""From a task to its rollout: what plays it, and attempts until one succeeds.

An environment's rollout is played by an `Episode`. An agent runs its own loop, so an `AgentPlayer`
plays its rollouts, in the place of an environment.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol, TypeAlias

from abut.concurrency.clock import TimeLimit
from abut.concurrency.loop import LoopTasks
from abut.envs.foreign import placed
from abut.envs.task import RolloutPlayer, RolloutTask
from abut.errors import EnvError, TemplateError, TokenizerError
from abut.rollout.batch import Batch
from abut.rollout.episode import Episode
from abut.rollout.rollout import Rollout, StopReason

# The errors of one rollout. Any other is the sampler's failure or a defect, and ends the batch.
_ROLLOUT_ERRORS = (EnvError, TokenizerError, TemplateError)

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
        """True if others may be to blame for a failure, which then costs none of the retries."""
        ...

    async def run(self, clock: TimeLimit) -> Rollout:
        """Play it to its end, as `Episode.run` does."""
        ...

    def spared_s(self) -> float:
        """The seconds of the attempt that do not count, because others held it up."""
        ...

    def end(self) -> None:
        """End it, whatever became of it."""
        ...

    def where(self) -> str:
        """The line of foreign code that takes long, for errors."""
        ...

    def as_failed(self, error: str) -> Rollout:
        """Return a failed rollout, with all that was played of it."""
        ...


class AgentPlayer(RolloutPlayer, ABC):
    """Plays rollouts itself, in the place of an environment: an agent behind its gateway."""

    def loop(self) -> LoopTasks | None:
        """Start and return the loop on which its batches run best; None: that of the batch.

        If several players have one, the batch runs on that of the first task's player.
        """
        return None

    @abstractmethod
    def for_batch(self, batch: Batch) -> AbstractAsyncContextManager[None]:
        """Entered before a batch, on its loop, and left after it."""

    @abstractmethod
    def episode(self, batch: Batch, task: RolloutTask, attempt: int) -> AnyEpisode:
        """One attempt at a task."""

    async def settle(self, batch: Batch, played: Played) -> None:
        """Score the rollouts that it has played, of a batch or of a group of a stream.

        Called when all of them have ended.
        """
        return


def player_of(task: RolloutTask) -> AgentPlayer | None:
    """Return what plays the task itself; None where an environment is played."""
    return task.source if isinstance(task.source, AgentPlayer) else None


class OpenPlayers:
    """The agent players of one batch, each entered before its first rollout.

    Args:
        batch: on whose loop all of this is called.
        stack: leaves them.
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
    """The loop of the first player of these tasks that has one; None where none has."""
    for task in {id(task.source): task for task in tasks}.values():
        player = player_of(task)
        if player is not None and (loop := player.loop()) is not None:
            return loop
    return None


async def play_rollout(batch: Batch, task: RolloutTask) -> Rollout:
    """Play one rollout: whole episodes until one succeeds or the retries are used up."""
    began = time.monotonic()
    errors: list[str] = []
    traces: list[str] = []
    number, left = 0, batch.config.retries
    while True:
        episode = _episode(batch, task, number)
        try:
            rollout, may_pass = await _attempt(batch, episode, number)
        finally:
            episode.end()
        if rollout.error is not None:
            errors.append(rollout.error)
            traces += rollout.attempt_tracebacks
        rollout.attempts, rollout.attempt_errors = number + 1, errors
        rollout.attempt_tracebacks = traces
        rollout.seconds = time.monotonic() - began
        if not rollout.failed or not may_pass:
            break
        number += 1
        if episode.may_have_clashed:
            # Its class takes turns from now on, or has another loop, so this happens once.
            continue
        if not left:
            break
        left -= 1
    if rollout.failed and batch.config.on_failure == "zero":
        rollout.reward = 0.0
    return rollout


def _episode(batch: Batch, task: RolloutTask, number: int) -> AnyEpisode:
    if (player := player_of(task)) is not None:
        return player.episode(batch, task, number)
    return Episode(batch, task, number)


async def _attempt(batch: Batch, episode: AnyEpisode, number: int) -> tuple[Rollout, bool]:
    """Play one episode; return its rollout, failed or not, and whether a retry may succeed."""
    with batch.attempts.plays(episode.request_id) as attempt:
        limit_s = batch.config.rollout_timeout_s
        try:
            async with TimeLimit(limit_s, episode.spared_s) as deadline:
                return await episode.run(deadline), True
        except _ROLLOUT_ERRORS as error:
            may_pass = not isinstance(error, EnvError) or error.may_pass
            return _failed(batch, episode, number, error), may_pass
        except TimeoutError:
            if not deadline.expired():
                raise
            slow = EnvError(f"the rollout took longer than rollout_timeout_s={limit_s:g}")
            return _failed(batch, episode, number, placed(slow, episode.where())), True
        except asyncio.CancelledError:
            # `update` cancels a stale attempt. If the batch ends in the same moment, it has
            # cancelled this task a second time, and then the batch must win.
            if not attempt.is_stale or attempt.task.uncancel():
                raise
            stale = episode.as_failed("")
            stale.stop_reason, stale.error, stale.reward = StopReason.STALE, None, None
            return stale, True


def _failed(batch: Batch, episode: AnyEpisode, number: int, error: Exception) -> Rollout:
    text, trace = batch.failures.note(error, episode.rollout.rollout_id, number)
    rollout = episode.as_failed(text)
    rollout.attempt_tracebacks = [trace]
    return rollout
