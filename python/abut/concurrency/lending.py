"""Lending pools: borrowers queue for scarce items, on the event loop of the pool.

Invariant: borrowers are served first come, first served, each item has one borrower at a time, and
no borrower waits forever: a coroutine that was submitted to the loop of a pool begins before the
loop ends.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, Protocol, Self, TypeVar

from abut.concurrency.loop import DaemonLoop, is_cancelled
from abut.errors import EnvError

T = TypeVar("T")
Item = TypeVar("Item")

_CLOSE_S = 5.0


class PoolLoop:
    """Runs the coroutines of one pool; its thread starts with the first coroutine.

    Args:
        owner: the name of the pool in errors.
        loop: a loop that is not running yet; None makes one.
    """

    def __init__(self, owner: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._loop: DaemonLoop | None = DaemonLoop(f"abut-{owner.lower()}", loop)

    def submit(self, call: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run the coroutine that `call` makes; `EnvError` if the pool was closed."""
        return self._use(lambda loop: loop.submit(call))

    def ask(self, call: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Run a coroutine; return a future of the running loop. `EnvError` for a closed pool."""
        return self._use(lambda loop: loop.ask(call))

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine on the pool's loop; `EnvError` if the pool was or is closed meanwhile."""
        loop = self._loop
        is_here = loop is not None and loop.is_current
        try:
            return await (call() if is_here else self.ask(call))
        except asyncio.CancelledError:
            # A call here can be cancelled by the end of the loop as well as by its caller.
            if self._loop is not None or (is_cancelled() and not is_here):
                raise
            raise EnvError(f"the {self._owner} was closed during an episode") from None

    def close(self, close: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        """Run `close` last on the loop, end the loop, and call `then`; only the first time."""
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
        with self._lock:  # submitted calls are on the loop before `close` ends it
            if self._loop is None:
                raise EnvError(f"this {self._owner} is closed\nhint: make a new one")
            self._loop.open()
            return use(self._loop)


class LendingPool(ABC, Generic[Item]):
    """The queue of a pool; all calls come from one loop, so it does not need locks.

    A subclass defines what is free (`_take`) and when waiting is pointless (`_give_up`), and calls
    `_wake` whenever either may have changed.
    """

    def __init__(self) -> None:
        # Only the first borrower in the queue looks for a free item. `asyncio.Lock` wakes waiters
        # in the order in which they came, and a cancelled waiter passes its turn to the next.
        self._line = asyncio.Lock()
        self._in_line = 0
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()  # a loop itself keeps none alive

    @abstractmethod
    def _take(self) -> Item | None:
        """Take a free item; None if there is none."""

    @abstractmethod
    def _give_up(self, began: float) -> None:
        """Raise an `EnvError` if waiting is pointless for a borrower that arrived at this time."""

    def _next_look(self) -> float | None:
        """Return when an item may become free without a call of `_wake`; None: never."""
        return None

    async def _next_in_line(self, began: float) -> Item:
        """Wait in the queue, and take the first free item.

        Raises:
            EnvError: as for `_give_up`.
        """
        self._in_line += 1
        try:
            async with self._line:
                while (item := self._take()) is None:
                    self._give_up(began)
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(self._next_look()):
                            await self._changed.wait()
                return item
        finally:
            self._in_line -= 1

    async def _line_ends(self) -> None:
        """Wait until the queue is empty, after `_give_up` has begun to raise for all."""
        while self._in_line:
            await asyncio.sleep(0)

    def _wake(self) -> None:
        """Make the first borrower in the queue look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Lender(Protocol[Item]):
    """The interface of a pool for its loans; used on the loop of the pool."""

    async def lend(self) -> Item:
        """Wait for an item."""
        ...

    def give_back(self, item: Item) -> None:
        """Take an item back."""
        ...


class Loan(Generic[Item]):
    """The use of one item of a pool, from `begin` to `close`.

    Args:
        pool: lends the item.
        loop: of the pool.
    """

    def __init__(self, pool: Lender[Item], loop: PoolLoop) -> None:
        self.loop: PoolLoop = loop
        self.item: Item | None = None
        """The item, from `open` to `close`."""
        self._pool = pool
        self._given_back = False

    async def begin(self) -> Self:
        """Wait for an item, from any loop.

        Raises:
            EnvError: no item can be had.
        """
        try:
            await self.loop.call(self.open)
        except BaseException:
            self.close()
            raise
        return self

    async def open(self) -> None:
        """Wait for an item; on the loop of the pool."""
        item = await self._pool.lend()
        if self._given_back:  # the borrower no longer waits
            self._pool.give_back(item)
            return
        self.item = item

    def close(self) -> None:
        """Give the item back; does not wait."""
        with suppress(EnvError):  # the pool was closed, and all that it had lent
            self.loop.submit(self.give_back)

    async def give_back(self) -> None:
        """Give the item back; on the loop of the pool."""
        self._given_back = True
        item, self.item = self.item, None
        if item is not None:
            self._pool.give_back(item)
