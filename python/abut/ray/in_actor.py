"""The classes of actors, which run environments or agents.

Invariant: whatever an environment or an agent does, the actor answers. An exception, even
`SystemExit`, never ends the process or another episode in it.

An environment runs on Ray's own thread for its slot, on which Ray makes each call of a lease.
Switching from there to another thread and back took a sixth of the actor's CPU time.
"""

import asyncio
import math
import pickle
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from abut.agents.checked_result import result_of
from abut.agents.function_agent import FunctionAgent, place_of_agent
from abut.agents.protocol import Endpoint, name_of
from abut.concurrency.loop import KeptLoop
from abut.envs.attributes import env_attribute
from abut.envs.foreign import AGENT, close_async_env, close_env, placed, raised_by_env
from abut.envs.guarded import EnvState, GuardedEnv, is_async, make_env
from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask
from abut.errors import EnvError, text_of, trace_of
from abut.messages import Message
from abut.ray.calls import Failed, Finished, Said, is_exhausted, packed, wired
from abut.ray.cluster import the_ray


class ActorHost:
    """The base of actors' classes; Ray has a thread for each slot, and one for other calls.

    Args:
        pickled: the argument of the pool.
    """

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self.made: Any = None
        """The user's class, factory or agent, after `begin` has unpickled it."""

    def begin(self) -> str | None:
        """Unpickle the argument of the pool; return what is wrong with it, or None."""
        try:
            self.made = pickle.loads(self._pickled)
        except BaseException as error:  # the user's modules are imported
            return text_of(error)
        return None


T = TypeVar("T")


class EnvHost(ActorHost):
    """The actor class for environments.

    A synchronous environment runs on the thread of its slot; asynchronous ones share an event loop.
    """

    def __init__(self, pickled: bytes) -> None:
        super().__init__(pickled)
        self._envs: dict[int, GuardedEnv] = {}
        """The environments by lease."""
        self._loop = KeptLoop("abut-env-host")

    @wired
    def reset(self, lease: int, task: RolloutTask, seed: str) -> Said | Failed:
        """Make an environment for this lease, and begin its episode."""
        env = self._envs[lease] = GuardedEnv(task)

        def begin() -> Said:
            env.env = make_env(self.made)
            return self._said(lease, "reset", seed, **env.reset_keywords())

        return _answer(begin)

    @wired
    def step(self, lease: int, action: str) -> Said | Failed:
        """Step the environment with an action of the policy."""
        return _answer(lambda: self._said(lease, "step", action))

    @wired
    def score_episode(self, lease: int, messages: list[Message]) -> Said | Failed:
        """Pass it the whole episode; its reward is then the reward of the episode."""
        env = self._envs[lease]

        async def score_async() -> EnvState:
            await env.call_async("score_episode", messages)
            return env.scored()

        def score() -> Said:
            if is_async(env.env):
                return Said(self._await(score_async))
            return Said(env.scored(env.call("score_episode", messages)))

        return _answer(score)

    def close(self, lease: int) -> None:
        """End an episode; return when its environment is closed, even if `close` raised."""
        guarded = self._envs.pop(lease, None)
        if guarded is None or guarded.env is None:
            return
        env = guarded.env
        with suppress(BaseException):  # a failure now does not affect a rollout
            if is_async(env):
                self._await(lambda: close_async_env(env))
            else:
                close_env(env)

    def _said(self, lease: int, method: str, /, *args: Any, **keywords: Any) -> Said:
        env = self._envs[lease]

        async def call_async() -> EnvState:
            return env.said(method, await env.call_async(method, *args, **keywords))

        if is_async(env.env):
            state = self._await(call_async)
        else:
            state = env.said(method, env.call(method, *args, **keywords))
        is_over = not (state.alive or state.scores_episode or env_attribute(env.env, "close"))
        if is_over:  # so the call that would say so is spared
            del self._envs[lease]
        return Said(state, is_over)

    def _await(self, call: Callable[[], Awaitable[T]]) -> T:
        return self._loop.open().submit(call).result()


def _answer(call: Callable[[], Said]) -> Said | Failed:
    """Make the call; an error also becomes an answer."""
    try:
        return call()
    except UnplayableRow as error:
        return Failed(str(error), "", is_row=True)
    except EnvError as error:
        trace = error.trace or trace_of(error)
        return Failed(str(error), trace, is_exhausted=is_exhausted(error), may_pass=error.may_pass)


Ended: TypeAlias = Finished | Failed

_CONNECT_S = 5.0


class AgentHost(ActorHost):
    """The actor class for agents. All rollouts in an actor share its agent."""

    def __init__(self, pickled: bytes) -> None:
        super().__init__(pickled)
        self._loop = KeptLoop("abut-agent-host")
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        """The tasks of asynchronous agents, by lease; used only on their loop."""

    @wired
    def play(self, lease: int, endpoint: Endpoint, task: RolloutTask) -> Ended:
        """Let the agent play one rollout, and return the outcome."""
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
        """Cancel an asynchronous agent that was given up."""

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
        """Return the agent's result as bytes.

        Raises:
            EnvError: it is not a reward, or cannot be pickled.
        """
        name, place = name_of(self.made), place_of_agent(self.made)
        result = result_of(returned, name, place, nan=math.nan)  # noticed where the training runs
        try:
            pickled = packed(result)
        except Exception as error:
            what = f"{name} returned a value that cannot be sent back: {text_of(error)}"
            raise placed(EnvError(what), place) from error
        return pickled


def _unreached(endpoint: Endpoint) -> str:
    """Return the hint for an agent that failed, if the gateway cannot be reached; else ""."""
    address = urlsplit(endpoint.base_url)
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        node = the_ray().util.get_node_ip_address()
        return (
            "\n"
            f"hint: the node {node} cannot reach {host}:{port} ({text_of(error)}); set "
            "make_rollout_func(…, gateway=Gateway(host=…)) to an address of the trainer's "
            "machine that all nodes reach, and open the port"
        )
    return ""
