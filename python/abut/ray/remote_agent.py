"""The agent that a rollout plays: it runs in an actor, and is called there once."""

import pickle
from typing import Any

from abut.agents.protocol import AgentResult, Endpoint
from abut.envs.task import RolloutTask
from abut.errors import EnvError, text_of
from abut.ray.answers import Finished
from abut.ray.lent import Lent
from abut.ray.remote_env import travelling


class RemoteAgent(Lent):
    """An `Agent`, lent by a pool of them for one rollout."""

    async def open(self) -> None:
        """Wait for a slot; on the loop of the pool."""
        await super().open()
        if self.lease is not None:
            # Nothing of an agent is left when its call returned; until then it can be cancelled.
            self.lease.closes, self.lease.cancels = False, True

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> AgentResult:
        """Have it play there.

        Raises:
            EnvError: it raised, returned what is no reward, or its actor is gone.
            UnplayableRow: the row lacks what it asks for.
        """
        sent = endpoint, travelling(task)
        answer: Any = await self._loop.call(lambda: self.asked(self._name, "play", *sent))
        assert isinstance(answer, Finished)
        try:
            result: AgentResult = pickle.loads(answer.pickled)
        except Exception as error:  # a class of the user's that is only known there
            raise EnvError(
                f"{self._name} returned what cannot be read here: {text_of(error)}\n"
                "hint: AgentResult(extras=…) must be made of what this process can import"
            ) from error
        return result
