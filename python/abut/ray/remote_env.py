"""The environment that a rollout plays: it lives in an actor, and each call is sent there, once."""

import dataclasses
from contextlib import suppress
from typing import Any, Self

from abut.concurrency.pool_loop import PoolLoop
from abut.envs.env import LoopBound, Reply
from abut.envs.reset_keywords import UnplayableRow
from abut.envs.task import RolloutTask
from abut.errors import EnvError
from abut.messages import Message
from abut.ray.answers import Failed, Said
from abut.ray.host_pool import HostPool, Lease


class RemoteEnv(LoopBound):
    """An `AsyncEnv`, lent by `RayPool`; each pool has a subclass with its environment's name."""

    def __init__(self, hosts: HostPool, loop: PoolLoop, task: RolloutTask) -> None:
        self.reward: float | None = None
        self.alive = False
        self.loop: PoolLoop = loop
        self.score_episode: Any = None
        """A method where the environment has one, known once it has said something."""
        self._hosts = hosts
        # What `reset` may ask for, and nothing that cannot be sent.
        self._task = dataclasses.replace(task, make_env=_elsewhere, processor=None, messages=())
        self._lease: Lease | None = None
        self._given_back = False

    async def open(self) -> None:
        """Wait for a slot; on the loop of the pool."""
        lease = await self._hosts.lend()
        if self._given_back:  # nobody waits any more
            self._hosts.give_back(lease)
            return
        self._lease = lease

    async def reset(self, seed: str) -> tuple[Self, Reply]:
        """Have an environment made there, and its episode begun."""
        return self, await self._call("reset", self._task, seed)

    async def step(self, action: str) -> tuple[Self, Reply]:
        """Have it take an action."""
        return self, await self._call("step", action)

    def close(self) -> None:
        """Give the slot back; does not wait."""
        with suppress(EnvError):  # the pool is closed, and every actor with it
            self.loop.submit(self._give_back)

    async def _give_back(self) -> None:
        self._given_back = True
        lease, self._lease = self._lease, None
        if lease is not None:
            self._hosts.give_back(lease)

    async def _score(self, messages: list[Message]) -> None:
        await self._call("score_episode", messages)

    async def _call(self, method: str, *args: Any) -> Reply:
        return await self.loop.call(lambda: self._asked(method, args))

    async def _asked(self, method: str, args: tuple[Any, ...]) -> Reply:
        if self._lease is None:
            raise EnvError(f"{type(self).__name__}.{method} after the environment was given back")
        name = f"{type(self).__name__}.{method}"
        answer = await self._hosts.ask(self._lease, name, method, *args)
        if isinstance(answer, Failed):
            if answer.is_row:
                raise UnplayableRow(answer.text)
            error = EnvError(answer.text)
            error.trace = answer.trace
            raise error
        assert isinstance(answer, Said)
        self.reward, self.alive = answer.reward, answer.alive
        self.score_episode = self._score if answer.scores_episode else None
        return answer.reply


def _elsewhere() -> Any:
    """What makes the environment is in the actor."""
    raise AssertionError
