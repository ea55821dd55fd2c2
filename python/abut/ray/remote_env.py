"""The environment that a rollout plays: it lives in an actor, and each call is sent there, once."""

import dataclasses
from typing import Any, Self

from abut.concurrency.pool_loop import PoolLoop
from abut.envs.env import LoopBound, Reply
from abut.envs.task import RolloutTask
from abut.errors import EnvError
from abut.messages import Message
from abut.ray.answers import Said
from abut.ray.host_pool import HostPool
from abut.ray.lent import Lent


class RemoteEnv(Lent, LoopBound):
    """An `AsyncEnv`, lent by `RayPool`; each pool has a subclass with its environment's name."""

    def __init__(self, hosts: HostPool, loop: PoolLoop, task: RolloutTask) -> None:
        super().__init__(hosts, loop, type(self).__name__)
        self.loop: PoolLoop = loop
        self.reward: float | None = None
        self.alive = False
        self.score_episode: Any = None
        """A method where the environment has one, known once it has said something."""
        # What `reset` may ask for, and nothing that cannot be sent.
        self._task = travelling(dataclasses.replace(task, messages=()))

    async def reset(self, seed: str) -> tuple[Self, Reply]:
        """Have an environment made there, and its episode begun."""
        return self, await self._call("reset", self._task, seed)

    async def step(self, action: str) -> tuple[Self, Reply]:
        """Have it take an action."""
        return self, await self._call("step", action)

    async def _score(self, messages: list[Message]) -> None:
        await self._call("score_episode", messages)

    async def _call(self, method: str, *args: Any) -> Reply:
        return await self._loop.call(lambda: self._said(method, args))

    async def _said(self, method: str, args: tuple[Any, ...]) -> Reply:
        name = f"{self._name}.{method}"
        if self.lease is not None and not self.lease.closes:
            raise EnvError(f"{name} after the end of its episode")
        answer = await self.asked(name, method, *args)
        assert isinstance(answer, Said)
        if answer.is_over and self.lease is not None:
            self.lease.closes = False
        self.reward, self.alive = answer.reward, answer.alive
        self.score_episode = self._score if answer.scores_episode else None
        return answer.reply


def travelling(task: RolloutTask) -> RolloutTask:
    """A task without what plays it and what writes it, which stay here."""
    return dataclasses.replace(task, make_env=_elsewhere, processor=None)


def _elsewhere() -> Any:
    """What makes the environment is in the actor."""
    raise AssertionError
