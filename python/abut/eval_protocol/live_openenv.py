"""One environment of OpenEnv's client protocol, while a rollout plays it.

Invariant: a synchronous one lives on a thread of its own, from its making to its close; a step is
sent once; a call that hangs keeps that thread and nothing else.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from abut.concurrency.threads import THREADS
from abut.envs.foreign import call_anywhere


class LiveOpenEnv:
    """An environment and where its calls run."""

    def __init__(self) -> None:
        self._thread = THREADS.call_queue()
        self._env: Any = None
        self._is_async = False

    async def open(self, make: Callable[[], Any]) -> None:
        """Make it, on its thread."""
        env = await self._thread.ask(make)
        # What starts a container is both: a client that can be awaited, or had by `.sync()`.
        if not hasattr(env, "reset") and callable(getattr(env, "sync", None)):
            env = await self._thread.ask(env.sync)
        if inspect.isawaitable(env):
            env = await env
        self._env = env
        self._is_async = inspect.iscoroutinefunction(getattr(env, "reset", None))

    async def reset(self) -> Any:
        """Its first result."""
        return await self._call(self._env.reset)

    async def step(self, action: Any) -> Any:
        """The result of an action."""
        return await self._call(self._env.step, action)

    async def beside(self, function: Callable[..., Any], *args: Any) -> Any:
        """Have the user's other code run on its thread: it may take as long as a step."""
        return await self._thread.ask(lambda: function(*args))

    def close(self) -> "asyncio.Future[Any]":
        """Close the environment after a call that still runs, without waiting for it."""
        env, self._env = self._env, None
        close = getattr(env, "close", None)
        if close is None or not (self._is_async or inspect.iscoroutinefunction(close)):
            return self._thread.ask(close or _nothing, last=True)
        self._thread.give_back()
        closing: asyncio.Future[Any] = asyncio.ensure_future(close())
        return closing

    async def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        if self._is_async:
            return await method(*args)
        return await call_anywhere(method, *args, calls=self._thread)


def _nothing() -> None: ...
