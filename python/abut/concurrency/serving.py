"""A context manager that stays entered from one use to the next.

Invariant: its own task enters and exits it.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from abut.errors import text_of

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Serving(Generic[T]):
    """An async context manager that stays entered from batch to batch, until `close`.

    One task enters and exits it, because task groups and cancel scopes must be exited by the task
    that entered them. An agent awaits `started` in its `start`, and `close` in its `close`.

    Args:
        context: makes the context manager.
        name: the agent's name, for warnings.
    """

    def __init__(self, context: Callable[[], AbstractAsyncContextManager[T]], name: str) -> None:
        self._context, self._name = context, name
        self._task: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[T] | None = None
        self._over = asyncio.Event()

    async def started(self) -> T:
        """Return the value of the context manager; the first call enters it.

        If it has ended by itself since, or its loop is no longer used, it is entered again.

        Raises:
            Exception: any error while entering it.
        """
        loop = asyncio.get_running_loop()
        task, entered = self._task, self._entered
        if task is not None and (task.get_loop() is not loop or task.done()):
            self._say_ended(task)
            task = None
        if task is None or entered is None:
            entered = self._entered = loop.create_future()
            self._over = asyncio.Event()
            task = self._task = loop.create_task(self._serve(entered, self._over))
        both: set[asyncio.Future[Any]] = {task, entered}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            self._task = None
            task.result()  # raises, because a task that has entered settles `entered`
        return entered.result()

    async def close(self) -> None:
        """Exit the context manager if it was entered; cancel entering it if that is in progress.

        Raises:
            Exception: any error while exiting it.
        """
        task, self._task = self._task, None
        if task is None or task.cancelled() or task.get_loop() is not asyncio.get_running_loop():
            return
        self._over.set()
        if self._entered is None or self._entered.done():
            await task
        else:  # a server that does not answer might never be entered
            task.cancel()
            await asyncio.wait([task])
            _ = task.cancelled() or task.exception()  # retrieves the error, so it is not logged

    async def _serve(self, entered: "asyncio.Future[T]", over: asyncio.Event) -> None:
        async with self._context() as value:
            entered.set_result(value)
            await over.wait()

    def _say_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.done():  # its loop is blocked permanently, so it cannot await anything
            logger.warning("%s restarts, because its event loop is blocked", self._name)
            return
        error = None if task.cancelled() else task.exception()
        why = "it was cancelled" if error is None else text_of(error)
        logger.warning("%s restarts, because it ended: %s", self._name, why)
