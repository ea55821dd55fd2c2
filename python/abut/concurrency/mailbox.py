"""Calls that threads send to an event loop, and functions that set its futures from a thread.

Invariant: an event loop has one mailbox, for all threads.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

from abut.errors import text_of

HandOver: TypeAlias = Callable[[Any, BaseException | None], None]


def settles(future: Future[Any]) -> HandOver:
    """Return a function that sets a future of threads."""

    def settle(result: Any, error: BaseException | None) -> None:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    return settle


def settles_here(future: asyncio.Future[Any]) -> HandOver:
    """Return a function that sets a future of an event loop, on that loop."""

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(_deliverable(error))

    return settle


def settles_on_loop(future: asyncio.Future[Any]) -> HandOver:
    """Return a function that sets a future of an event loop, from any thread."""
    settle, mailbox = settles_here(future), Mailbox.of(future.get_loop())
    return lambda result, error: mailbox.put(lambda: settle(result, error))


class Mailbox:
    """Calls that threads send to an event loop.

    The loop is woken once for all calls that have arrived by then. Waking it for each call, as
    `asyncio.wrap_future` does, takes longer than a step of a typical environment.
    """

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> "Mailbox":
        """Return the only mailbox of a loop."""
        # `setdefault` is one step for all threads. A lock could be held while the garbage collector
        # closes an object that waits for another thread, which wants the same lock.
        return _MAILBOXES.get(loop) or _MAILBOXES.setdefault(loop, Mailbox(loop))

    @staticmethod
    def drop(loop: asyncio.AbstractEventLoop) -> None:
        """Drop the calls that wait for a closed loop."""
        if (mailbox := _MAILBOXES.pop(loop, None)) is not None:
            mailbox._calls.clear()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Weak like its key in the map, because a value that refers to its key would be kept
        # forever.
        self._loop = weakref.ref(loop)
        self._calls: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def put(self, call: Callable[[], object]) -> None:
        """Make the loop call a function, which must not raise; may be called on any thread."""
        self._calls.append(call)
        loop = self._loop()
        if loop is None or loop.is_closed():
            self._calls.clear()  # no caller waits, and a call would keep its loop alive
        elif not self._is_woken:
            self._is_woken = True
            try:
                loop.call_soon_threadsafe(self._empty)
            except RuntimeError:  # closed in this moment
                self._calls.clear()

    def _empty(self) -> None:
        # Before the loop below, so that a later call is either seen there or wakes the loop again.
        self._is_woken = False
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            if self._calls and not self._is_woken:  # a call raised, and the others still count
                self._is_woken = True
                asyncio.get_running_loop().call_soon(self._empty)


_MAILBOXES = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox]()


def _deliverable(error: BaseException) -> BaseException:
    """Return an error that a future can hold, because a StopIteration would end the awaiter."""
    if not isinstance(error, StopIteration):
        return error
    stopped = RuntimeError(text_of(error))
    stopped.__cause__ = error
    return stopped
