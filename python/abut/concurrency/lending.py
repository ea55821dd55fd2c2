"""The loop of one pool: there its books are kept, and the environments that it lends are played.

Invariant: what was given to the loop is begun before the loop ends, so that nobody waits for ever.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from abut.concurrency.loop import DaemonLoop, is_cancelled
from abut.errors import EnvError

T = TypeVar("T")

_CLOSE_S = 5.0


class PoolLoop:
    """Runs coroutines; its thread starts with the first of them.

    Args:
        owner: what errors call the pool.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._loop: DaemonLoop | None = DaemonLoop(f"abut-{owner.lower()}")

    def submit(self, call: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run the coroutine that `call` makes; `EnvError` where this was closed."""
        return self._use(lambda loop: loop.submit(call))

    def ask(self, call: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Run it for who waits on the running loop; `EnvError` where this was closed."""
        return self._use(lambda loop: loop.ask(call))

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run it, here or by crossing over; `EnvError` where this was closed, also meanwhile."""
        loop = self._loop
        is_here = loop is not None and loop.is_current
        try:
            return await (call() if is_here else self.ask(call))
        except asyncio.CancelledError:
            # Who plays here is cancelled by the end of the loop as well as by who asked.
            if self._loop is not None or (is_cancelled() and not is_here):
                raise
            raise EnvError(f"the {self._owner} was closed during an episode") from None

    def close(self, close: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        """Run `close` as the last on the loop, end it, and call `then`; nothing the second time."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return

        def end() -> None:
            loop.open()
            with suppress(TimeoutError):
                loop.submit(close).result(_CLOSE_S)
            loop.end(_CLOSE_S)
            then()

        if loop.is_current:  # collected on its own thread, which cannot wait for itself
            threading.Thread(target=end, daemon=True).start()
        else:
            end()

    def _use(self, use: Callable[[DaemonLoop], T]) -> T:
        with self._lock:  # what is given to the loop is there before `close` ends it
            if self._loop is None:
                raise EnvError(f"this {self._owner} is closed\nhint: make a new one")
            self._loop.open()
            return use(self._loop)
