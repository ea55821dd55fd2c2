"""The environments and agents that a `RayPool` lends, which live in actors.

Each call is sent to the slot that was lent, once.
"""

import dataclasses
import pickle
from typing import Any, Self

from abut.agents.protocol import AgentResult, Endpoint
from abut.concurrency.lending import Loan, PoolLoop
from abut.envs.attributes import Extras
from abut.envs.env import LoopBound, Reply
from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask
from abut.errors import EnvError, text_of
from abut.messages import Message
from abut.ray.actor_pool import ActorPool, Lease
from abut.ray.calls import Failed, Finished, Said


class RemoteLoan(Loan[Lease]):
    """One slot of an actor, and the calls that go there.

    Args:
        actors: lend the slot.
        loop: of the pool; calls are sent from there.
        name: the name in errors.
    """

    def __init__(self, actors: ActorPool, loop: PoolLoop, name: str) -> None:
        super().__init__(actors, loop)
        self._actors = actors
        self._name = name

    async def asked(self, name: str, method: str, *args: Any) -> Any:
        """Call a method of the actor, on the loop of the pool.

        Args:
            name: the name of the call in errors.
            method: the method of the actor.
            args: the arguments after the number of the lease.

        Raises:
            EnvError: the call raised, or the actor died.
            UnplayableRow: the row lacks a required column.
        """
        if self.item is None:
            raise EnvError(f"{name} was called after the environment was given back")
        answer = await self._actors.ask(self.item, name, method, *args)
        if not isinstance(answer, Failed):
            return answer
        if answer.is_row:
            raise UnplayableRow(answer.text)
        error = EnvError(answer.text, may_pass=answer.may_pass)
        error.trace = answer.trace
        raise error


class RemoteEnv(RemoteLoan, LoopBound):
    """An `AsyncEnv`, lent by `RayPool`; each pool has a subclass with its environment's name."""

    loop: PoolLoop

    def __init__(self, actors: ActorPool, loop: PoolLoop, task: RolloutTask) -> None:
        super().__init__(actors, loop, type(self).__name__)
        self.reward: float | None = None
        self.alive = False
        self.extras: Extras = {}
        self.score_episode: Any = None
        """A method, if the environment has one; known after its first answer."""
        # The parameters that `reset` may have, without objects that cannot be sent.
        self._task = travelling(dataclasses.replace(task, messages=()))

    async def reset(self, seed: str) -> tuple[Self, Reply]:
        """Make an environment in the actor, and begin its episode."""
        return self, await self._call("reset", self._task, seed)

    async def step(self, action: str) -> tuple[Self, Reply]:
        """Step it with an action."""
        return self, await self._call("step", action)

    async def _score(self, messages: list[Message]) -> None:
        await self._call("score_episode", messages)

    async def _call(self, method: str, *args: Any) -> Reply:
        return await self.loop.call(lambda: self._said(method, args))

    async def _said(self, method: str, args: tuple[Any, ...]) -> Reply:
        name = f"{self._name}.{method}"
        if self.item is not None and not self.item.closes:
            raise EnvError(f"{name} was called after the end of its episode")
        answer = await self.asked(name, method, *args)
        assert isinstance(answer, Said)
        if answer.is_over and self.item is not None:
            self.item.closes = False
        state = answer.state
        self.reward, self.alive, self.extras = state.reward, state.alive, state.extras
        self.score_episode = self._score if state.scores_episode else None
        return state.reply


def travelling(task: RolloutTask) -> RolloutTask:
    """Return a task without its player and its processor, which stay in this process."""
    return dataclasses.replace(task, source=_elsewhere, processor=None)


def _elsewhere() -> Any:
    """Replace the source of the environment, which is in the actor."""
    raise AssertionError


class RemoteAgent(RemoteLoan):
    """An `Agent`, lent by a pool of them for one rollout."""

    async def open(self) -> None:
        """Wait for a slot; on the loop of the pool."""
        await super().open()
        if self.item is not None:
            # Nothing of an agent is left when its call returned; until then it can be cancelled.
            self.item.closes, self.item.cancels = False, True

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> AgentResult:
        """Play one rollout in the actor.

        Raises:
            EnvError: the agent raised, its result is not a reward, or its actor died.
            UnplayableRow: the row lacks a column that the agent needs.
        """
        sent = endpoint, travelling(task)
        answer: Any = await self.loop.call(lambda: self.asked(self._name, "play", *sent))
        assert isinstance(answer, Finished)
        try:
            result: AgentResult = pickle.loads(answer.pickled)
        except Exception as error:  # a class of the user's that is only known there
            raise EnvError(
                f"{self._name} returned a value that this process cannot unpickle: "
                f"{text_of(error)}\n"
                "hint: AgentResult(extras=…) may have only types that this process can import"
            ) from error
        return result
