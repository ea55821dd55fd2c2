"""Threads that a hanging environment cannot hold hostage.

`concurrent.futures` joins its threads when the interpreter exits, so one environment that never
returns would keep the process alive. These are daemons, and their number is bounded by the caller.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads:
    """Runs calls on daemon threads; a new thread starts when none is idle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` on a thread."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name!r} are closed")
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                name = f"{self._name}-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Let idle threads end, and busy ones end after their call."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._threads):
                self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # handed to whoever waits
                    self._rest()
                    future.set_exception(error)
                else:
                    self._rest()
                    future.set_result(result)
            else:
                self._rest()
            del item, future, call

    def _rest(self) -> None:
        # Idle before the result is seen, so that the next call finds this thread.
        with self._lock:
            self._idle += 1
