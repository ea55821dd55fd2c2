"""What runs in an actor: the environments of several episodes, each on a thread of its own.

Invariant: whatever an environment does is an answer. Nothing that it raises, `SystemExit` included,
ends the process or an environment beside it.

The thread is Ray's own, that of the slot, on which Ray makes each call of a lease. To hand a call
from there to a thread of ours, and its answer back, took a sixth of the actor's CPU.
"""

import inspect
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from abut.concurrency.loop import KeptLoop
from abut.envs.foreign import (
    check_reply,
    close_env,
    env_alive,
    env_attribute,
    env_reward_value,
    is_async,
    make_env,
    raised_by_env,
)
from abut.envs.reset_keywords import (
    UnplayableRow,
    accepted_keywords,
    check_removed,
    lacks_column,
)
from abut.envs.task import EnvFactory, RolloutTask
from abut.errors import EnvError, trace_of
from abut.messages import Message
from abut.ray.actor_host import ActorHost, is_exhausted
from abut.ray.answers import Failed, Said
from abut.ray.wire import wired

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
