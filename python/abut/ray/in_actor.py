"""The actors' classes: what runs in an actor, environments or agents.

Invariant: whatever an environment or an agent does is an answer. Nothing that it raises,
`SystemExit` included, ends the process or an episode beside it.

The thread of an environment is Ray's own, that of the slot, on which Ray makes each call of a
lease. To hand a call from there to a thread of ours, and its answer back, took a sixth of the
actor's CPU.
"""

import asyncio
import inspect
import math
import pickle
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from abut.agents.function_agent import FunctionAgent, place_of_agent
from abut.agents.protocol import Endpoint, name_of, result_of
from abut.concurrency.loop import KeptLoop
from abut.envs.foreign import (
    AGENT,
    check_reply,
    close_env,
    env_alive,
    env_attribute,
    env_reward_value,
    is_async,
    make_env,
    placed,
    raised_by_env,
)
from abut.envs.signatures import (
    UnplayableRow,
    accepted_keywords,
    check_removed,
    lacks_column,
)
from abut.envs.task import EnvFactory, RolloutTask
from abut.errors import EnvError, text_of, trace_of
from abut.messages import Message
from abut.ray.calls import Failed, Finished, Said, is_exhausted, packed, wired
from abut.ray.cluster import the_ray


class ActorHost:
    """Base of actors' classes: Ray has a thread for each slot, and one for what is of no slot.

    Args:
        pickled: what the pool was made with.
    """

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self.made: Any = None
        """It, once this has begun."""

    def begin(self) -> str | None:
        """Unpickle it; returns what is wrong with that, None for nothing."""
        try:
            self.made = pickle.loads(self._pickled)
        except BaseException as error:  # the user's modules are imported
            return text_of(error)
        return None


T = TypeVar("T")
Answer: TypeAlias = Said | Failed


class EnvHost(ActorHost):
    """An actor's class: the environments of one actor."""

    def __init__(self, pickled: bytes) -> None:
        super().__init__(pickled)
        self._seats: dict[int, _Seat] = {}
        self._loop = KeptLoop("abut-env-host")

    @wired
    def reset(self, lease: int, task: RolloutTask, seed: str) -> Answer:
        """Make an environment for this lease, and begin its episode."""
        seat = self._seats[lease] = _Seat(self.made, self._loop)
        return self._unless_over(lease, _answer(lambda: seat.begin(task, seed)))

    @wired
    def step(self, lease: int, action: str) -> Answer:
        """Take an action of the policy."""
        seat = self._seats[lease]
        return self._unless_over(lease, _answer(lambda: seat.say("step", action)))

    @wired
    def score_episode(self, lease: int, messages: list[Message]) -> Answer:
        """Show it the whole episode."""
        seat = self._seats[lease]
        return _answer(lambda: seat.score(messages))

    def close(self, lease: int) -> None:
        """End an episode; returns when its environment is closed, whatever that raised."""
        if (seat := self._seats.pop(lease, None)) is not None:
            seat.close()

    def _unless_over(self, lease: int, answer: Answer) -> Answer:
        """The answer; where the episode has ended with it, its seat is empty."""
        if isinstance(answer, Said) and answer.is_over:
            del self._seats[lease]
        return answer


def _answer(call: Callable[[], Said]) -> Answer:
    """What an environment says; what fails becomes an answer as well."""
    try:
        return call()
    except UnplayableRow as error:
        return Failed(str(error), "", is_row=True)
    except EnvError as error:
        trace = error.trace or trace_of(error)
        return Failed(str(error), trace, is_exhausted=is_exhausted(error), may_pass=error.may_pass)


class _Seat:
    """One environment; a synchronous one is used on the thread that calls, others share a loop."""

    def __init__(self, make: EnvFactory, loop: KeptLoop) -> None:
        self._make = make
        self._loop = loop
        self._env: Any = None

    def begin(self, task: RolloutTask, seed: str) -> Said:
        self._env = make_env(self._make)
        reset, name = env_attribute(self._env, "reset"), f"{type(self._env).__name__}.reset"
        check_removed(reset, name, task)
        keywords = accepted_keywords(self._env, task.columns, task.episode_seed)
        try:
            return self.say("reset", seed, **keywords)
        except EnvError as error:
            cause = error.__cause__
            if cause is not None and (lacks := lacks_column(reset, name, task, cause)):
                raise lacks from cause
            raise

    def say(self, method: str, /, *args: Any, **keywords: Any) -> Said:
        """Call a method that returns `(env, reply)`."""

        def look(returned: Any) -> Said:
            self._env, reply = check_reply(self._env, method, returned)
            return self._said(reply)

        return self._call(method, look, *args, **keywords)

    def score(self, messages: list[Message]) -> Said:
        """Call `score_episode`; the reward is then that of the episode."""
        return self._call("score_episode", lambda _: self._said(""), messages)

    def close(self) -> None:
        """Close it; what fails then concerns no rollout."""
        if self._env is None:
            return
        with suppress(BaseException):
            if is_async(self._env):
                self._await(self._close_async)
            else:
                close_env(self._env)

    def _call(
        self, method: str, look: Callable[[Any], Said], /, *args: Any, **keywords: Any
    ) -> Said:
        def raised(error: BaseException) -> EnvError:
            return raised_by_env(f"{type(self._env).__name__}.{method}", error)

        async def call_async() -> Said:
            try:
                returned = getattr(self._env, method)(*args, **keywords)
                if inspect.isawaitable(returned):
                    returned = await returned
            except BaseException as error:
                raise raised(error) from error
            return look(returned)

        if is_async(self._env):
            return self._await(call_async)
        try:
            returned = getattr(self._env, method)(*args, **keywords)
        except BaseException as error:  # SystemExit of an environment ends no host
            raise raised(error) from error
        return look(returned)

    def _said(self, reply: Any) -> Said:
        nan: list[None] = []
        reward = env_reward_value(self._env, lambda: nan.append(None))
        alive, reward = env_alive(self._env), math.nan if nan else reward
        scores = env_attribute(self._env, "score_episode") is not None
        is_over = not (alive or scores or env_attribute(self._env, "close"))
        if is_over:  # so the call that would say so is spared
            self._env = None
        return Said(reply, alive, reward, scores, is_over)

    async def _close_async(self) -> None:
        close = getattr(self._env, "close", None)
        if close is not None and inspect.isawaitable(closing := close()):
            await closing

    def _await(self, call: Callable[[], Awaitable[T]]) -> T:
        return self._loop.open().submit(call).result()


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
