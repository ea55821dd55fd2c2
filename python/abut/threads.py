"""Threads that a hanging environment cannot hold hostage.

`concurrent.futures` joins its threads when the interpreter exits, so one environment that never
returns would keep the process alive. These are daemons, and their number is bounded by the caller.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Work(NamedTuple):
    """A call, whether it is still wanted, and who gets `(result, error)`."""

    call: Callable[[], Any]
    is_wanted: Callable[[], bool]
    hand_over: Callable[[Any, BaseException | None], None]


class DaemonThreads:
    """Runs calls on daemon threads; a new thread starts when none is idle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work_to_do: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` on a thread."""
        future: Future[T] = Future()

        def hand_over(result: T, error: BaseException | None) -> None:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._put(_Work(call, future.set_running_or_notify_cancel, hand_over))
        return future

    def ask(self, call: Callable[[], T], answers: "Answers") -> asyncio.Future[T]:
        """Run `call` on a thread for who waits on the loop of `answers`."""
        future: asyncio.Future[T] = answers.loop.create_future()

        def hand_over(result: T, error: BaseException | None) -> None:
            answers.put(future, result, error)

        self._put(_Work(call, lambda: not future.cancelled(), hand_over))
        return future

    def close(self) -> None:
        """Let idle threads end, and busy ones end after their call."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._threads):
                self._work_to_do.put(None)

    def _put(self, work: _Work) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name!r} are closed")
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                name = f"{self._name}-{self._threads}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        self._work_to_do.put(work)

    def _run(self) -> None:
        while (work := self._work_to_do.get()) is not None:
            result, error = None, None
            wanted = work.is_wanted()
            if wanted:
                try:
                    result = work.call()
                except BaseException as raised:  # handed to whoever waits
                    error = raised
            # Idle before the result is seen, so that the next call finds this thread.
            with self._lock:
                self._idle += 1
            if wanted:
                work.hand_over(result, error)
            del work, result, error


class Answers:
    """What threads answer to an event loop.

    A loop is woken once for all answers that are there by then: waking it for each, as
    `asyncio.wrap_future` does, costs more than what a usual environment does in a step.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._answers: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_woken = False

    def put(self, future: asyncio.Future[T], result: T, error: BaseException | None) -> None:
        """Set the result of a future of the loop, from any thread."""
        self._answers.append((future, result, error))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        # First: what is put from here on either is seen below or wakes the loop again.
        self._is_woken = False
        while self._answers:
            future, result, error = self._answers.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
