"""What runs in an actor: the environments of several episodes, each on a thread of its own.

Invariant: whatever an environment does is an answer. Nothing that it raises, `SystemExit` included,
ends the process or an environment beside it.
"""

import errno
import inspect
import math
import pickle
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from abut.concurrency.loop import KeptLoop
from abut.concurrency.threads import THREADS, DaemonThread
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
from abut.errors import EnvError, text_of, trace_of
from abut.messages import Message
from abut.ray.answers import Failed, Said

T = TypeVar("T")
Answer: TypeAlias = Said | Failed

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class EnvHost:
    """An actor's class: Ray calls its methods on as many threads as it has slots, and one more.

    Args:
        pickled: what makes environments.
    """

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self._make: EnvFactory | None = None
        self._seats: dict[int, _Seat] = {}
        self._loop = KeptLoop("abut-env-host")

    def begin(self) -> str | None:
        """Find what makes environments; returns what is wrong with that, None for nothing."""
        try:
            self._make = pickle.loads(self._pickled)
        except BaseException as error:  # the user's modules are imported
            return text_of(error)
        return None

    def reset(self, lease: int, task: RolloutTask, seed: str) -> Answer:
        """Make an environment for this lease, and begin its episode."""
        assert self._make is not None
        seat = self._seats[lease] = _Seat(self._make, self._loop)
        return seat.on_thread(lambda: seat.begin(task, seed))

    def step(self, lease: int, action: str) -> Answer:
        """Take an action of the policy."""
        seat = self._seats[lease]
        return seat.on_thread(lambda: seat.say("step", action))

    def score_episode(self, lease: int, messages: list[Message]) -> Answer:
        """Show it the whole episode."""
        seat = self._seats[lease]
        return seat.on_thread(lambda: seat.score(messages))

    def close(self, lease: int) -> None:
        """End an episode; returns when its environment is closed, whatever that raised."""
        if (seat := self._seats.pop(lease, None)) is not None:
            seat.close()


class _Seat:
    """One environment, and the thread on which it lives; an asynchronous one shares a loop."""

    def __init__(self, make: EnvFactory, loop: KeptLoop) -> None:
        self._make = make
        self._loop = loop
        self._thread: DaemonThread = THREADS.lend()
        self._env: Any = None

    def on_thread(self, call: Callable[[], Said]) -> Answer:
        """Run what asks the environment; what fails becomes an answer as well."""

        def guarded() -> Answer:
            try:
                return call()
            except UnplayableRow as error:
                return Failed(str(error), "", is_row=True)
            except EnvError as error:
                trace = error.trace or trace_of(error)
                return Failed(str(error), trace, is_exhausted=_is_exhausted(error))

        return self._thread.submit(guarded).result()

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
        """Close it on its thread, and give that back."""

        def close() -> None:
            if self._env is None:
                return
            with suppress(BaseException):  # what fails here concerns no rollout
                if is_async(self._env):
                    self._await(self._close_async)
                else:
                    close_env(self._env)

        self._thread.submit(close, last=True).result()

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
        scores = env_attribute(self._env, "score_episode") is not None
        return Said(reply, env_alive(self._env), math.nan if nan else reward, scores)

    async def _close_async(self) -> None:
        close = getattr(self._env, "close", None)
        if close is not None and inspect.isawaitable(closing := close()):
            await closing

    def _await(self, call: Callable[[], Awaitable[T]]) -> T:
        return self._loop.open().submit(call).result()


def _is_exhausted(error: BaseException) -> bool:
    """Whether a process that has run out of memory, files or threads is behind an error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "can't start new thread" in str(cause):
            return True
        if isinstance(cause, OSError) and cause.errno in _EXHAUSTED:
            return True
        cause = cause.__cause__
    return False
