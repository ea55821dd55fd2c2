"""What runs in an actor of agents: several rollouts, each one call of the agent.

Invariant: whatever an agent does is an answer. Nothing that it raises, `SystemExit` included, ends
the process or a rollout beside it.
"""

import asyncio
import math
import socket
from dataclasses import replace
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from abut.agents.function_agent import FunctionAgent, place_of_agent
from abut.agents.protocol import Endpoint, name_of, result_of
from abut.concurrency.loop import KeptLoop
from abut.envs.foreign import AGENT, placed, raised_by_env
from abut.envs.reset_keywords import UnplayableRow
from abut.envs.task import RolloutTask
from abut.errors import EnvError, text_of
from abut.ray.actor_host import ActorHost, is_exhausted
from abut.ray.answers import Failed, Finished
from abut.ray.package import the_ray
from abut.ray.wire import packed, wired

Ended: TypeAlias = Finished | Failed

_CONNECT_S = 5.0


class AgentHost(ActorHost):
    """An actor's class: the rollouts of one actor. Its agent is one for all of them."""

    def __init__(self, pickled: bytes) -> None:
        super().__init__(pickled)
        self._loop = KeptLoop("abut-agent-host")
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        """Those of asynchronous agents, by their leases; seen on their loop alone."""

    @wired
    def play(self, lease: int, endpoint: Endpoint, task: RolloutTask) -> Ended:
        """Have the agent play one rollout, and say what came of it."""
        try:
            return Finished(self._result(self._returned(lease, endpoint, task)))
        except UnplayableRow as error:
            return Failed(str(error), "", is_row=True)
        except BaseException as error:  # of the agent
            raised = raised_by_env(name_of(self.made), error, runs=AGENT)
            return Failed(
                f"{raised}{_unreached(endpoint)}",
                raised.trace,
                is_exhausted=is_exhausted(error),
                may_pass=raised.may_pass,
            )

    def cancel(self, lease: int) -> None:
        """Cancel an asynchronous agent that nobody waits for any more."""

        async def cancel() -> None:
            if (task := self._tasks.get(lease)) is not None:
                task.cancel()

        self._loop.open().submit(cancel)

    def _returned(self, lease: int, endpoint: Endpoint, task: RolloutTask) -> Any:
        agent = self.made
        if isinstance(agent, FunctionAgent) and not agent.is_async:
            return agent.begin(endpoint, task)

        async def run() -> Any:
            current = asyncio.current_task()
            assert current is not None
            self._tasks[lease] = current
            try:
                return await agent.run(endpoint, task)
            finally:
                del self._tasks[lease]

        return self._loop.open().submit(run).result()

    def _result(self, returned: Any) -> bytes:
        """What it returned, as it can be sent.

        Raises:
            EnvError: it is no reward, or has what cannot be pickled.
        """
        name, place, nan = name_of(self.made), place_of_agent(self.made), list[None]()
        result = result_of(returned, name, place, on_nan=lambda: nan.append(None))
        if nan:  # noticed where the training runs
            result = replace(result, reward=math.nan)
        try:
            pickled = packed(result)
        except Exception as error:
            what = f"{name} returned what cannot be sent back: {text_of(error)}"
            raise placed(EnvError(what), place) from error
        return pickled


def _unreached(endpoint: Endpoint) -> str:
    """What to do where no gateway can be reached from here, which may be why an agent failed."""
    address = urlsplit(endpoint.base_url)
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        node = the_ray().util.get_node_ip_address()
        return (
            f"\nhint: from the node {node} nothing answers at {host}:{port} ({text_of(error)}); "
            "make_rollout_func(…, gateway=Gateway(host=…)) needs an address of the trainer's "
            "machine that all nodes reach, and an open port"
        )
    return ""
