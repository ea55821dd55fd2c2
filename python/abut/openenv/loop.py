"""A loop on a thread of its own, which lives as long as its sockets do.

The loops of the engine end with each batch; sessions are kept from one batch to the next. And a
server that pings gets its answer here, whatever generation or an environment does meanwhile.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines on a daemon thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def current(self) -> bool:
        """Whether this is its thread."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine; the thread starts with the first one.

        Raises:
            RuntimeError: it is closed.
        """
        with self._lock:
            if self._closed:
                coroutine.close()
                raise RuntimeError(f"{self._name} is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self, timeout_s: float) -> None:
        """End what still runs, and the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
            self._closed = True
        if loop is None or self._thread is None:
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(timeout_s)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(timeout_s)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
