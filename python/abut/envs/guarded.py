"""One environment of the user's while an episode is played with it, wherever its code runs.

Invariant: a call of the environment ends in a value, an `EnvError` that names the method, or an
`UnplayableRow`. `SystemExit` of an environment ends no training and no actor. The caller decides
on which thread or loop this code runs, and looks at the environment only there.
"""

import inspect
import os
import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from abut.concurrency.threads import THREADS, CallQueue
from abut.envs.env import Reply
from abut.envs.foreign import (
    check_no_awaitable,
    check_reply,
    env_alive,
    env_attribute,
    env_reward_value,
    placed_in,
    raised_by_env,
)
from abut.envs.signatures import UnplayableRow, accepted_keywords, check_removed, lacks_column
from abut.envs.task import RolloutTask
from abut.errors import EnvError


class EnvState(NamedTuple):
    """The reply of an environment, and its attributes after it."""

    reply: Reply
    alive: bool
    reward: float | None
    """NaN stays NaN, so that whoever plays the episode can warn of it."""
    scores_episode: bool
    """True if it has `score_episode`, which gets the whole episode at its end."""


async def _as_it_is(awaiting: Callable[[], Awaitable[Any]]) -> Any:
    return await awaiting()


class GuardedEnv:
    """One environment, from its constructor to the end of its episode.

    Args:
        task: its row has what `reset` asks for.

    Attributes:
        env: the user's object; None until it was made or lent.
    """

    def __init__(self, task: RolloutTask) -> None:
        self._task = task
        self.env: Any = None

    def name_of(self, method: str) -> str:
        """Return the name of a method in errors."""
        return f"{type(self.env).__name__}.{method}"

    def reset_keywords(self) -> dict[str, Any]:
        """Return what `reset` gets besides the seed.

        Raises:
            EnvError: the environment cannot say.
            UnplayableRow: `reset` takes a column that the trainer took out of the row.
        """
        check_removed(env_attribute(self.env, "reset"), self.name_of("reset"), self._task)
        return accepted_keywords(self.env, self._task.columns, self._task.episode_seed)

    def call(self, method: str, /, *args: Any, **keywords: Any) -> Any:
        """Call a method here, and return what it returns."""
        try:
            return getattr(self.env, method)(*args, **keywords)
        except BaseException as error:
            raise self._raised(method, error) from error

    async def call_async(
        self,
        method: str,
        /,
        *args: Any,
        wait: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]] = _as_it_is,
        **keywords: Any,
    ) -> Any:
        """Call a method of an asynchronous environment, on its loop.

        Args:
            method: is called with `args` and `keywords`.
            args: by position.
            wait: awaits what the method returns.
            keywords: by name.
        """
        try:
            returned = getattr(self.env, method)(*args, **keywords)
            is_async = inspect.isawaitable(returned)
            if is_async:
                returned = await wait(lambda: returned)
        except BaseException as error:
            raise self._raised(method, error) from error
        if not is_async:
            raise EnvError(
                f"{self.name_of(method)} is not async, but step is\n"
                "hint: make reset and step both `async def`"
            )
        return returned

    def first_reply(self, returned: Any) -> Reply:
        """Check what `reset` returned.

        Raises:
            EnvError: it is wrong, or the episode is over before it began.
        """
        self.env, reply = check_reply(self.env, "reset", returned)
        if not env_alive(self.env):
            raise placed_in(
                self.env,
                "reset",
                f"{type(self.env).__name__}.alive is False after reset\nhint: reset must set "
                "alive to True, also on an environment that was used before",
            )
        return reply

    def said(self, method: str, returned: Any) -> EnvState:
        """Check what `reset` or `step` returned, and look at the environment.

        Raises:
            EnvError: it is wrong.
        """
        self.env, reply = check_reply(self.env, method, returned)
        return self._state(reply)

    def scored(self, returned: Any = None) -> EnvState:
        """Look at the environment after `score_episode`, which returned this.

        Raises:
            EnvError: `score_episode` is async, but the others are not.
        """
        check_no_awaitable(self.env, "score_episode", returned)
        return self._state("")

    def _state(self, reply: Reply) -> EnvState:
        reward = env_reward_value(self.env)
        scores = env_attribute(self.env, "score_episode") is not None
        return EnvState(reply, env_alive(self.env), reward, scores)

    def _raised(self, method: str, error: BaseException) -> Exception:
        if isinstance(error, UnplayableRow):
            return error
        if method == "reset":
            reset = env_attribute(self.env, "reset")
            if lacks := lacks_column(reset, self.name_of("reset"), self._task, error):
                return lacks
        return raised_by_env(self.name_of(method), error)


_LENT: dict[int, CallQueue] = {}
"""The queues of environments that pools lend, by the addresses of the environments."""
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_LENT.clear)  # a forked child has none of these threads


def queue_of(env: Any) -> CallQueue:
    """Return the queue of an environment that a pool lends.

    The environment keeps one thread as long as it lives, whoever plays with it.

    Raises:
        EnvError: nothing could tell when the environment ends.
    """
    if (calls := _LENT.get(id(env))) is not None:
        return calls
    calls = THREADS.call_queue()
    try:
        weakref.finalize(env, _forget, id(env)).atexit = False
    except TypeError as error:
        calls.give_back()
        raise EnvError(
            f"a pool lent a {type(env).__name__} that cannot be weakly referenced\n"
            'hint: add "__weakref__" to its __slots__'
        ) from error
    _LENT[id(env)] = calls
    return calls


def _forget(address: int) -> None:
    if (calls := _LENT.pop(address, None)) is not None:
        calls.give_back()
