"""Event loops on daemon threads, so that code that blocks a loop cannot keep the process alive.

The loops are uvloop's if that is installed, because they need less CPU time than asyncio's.
"""

import asyncio
import functools
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from abut.concurrency.mailbox import HandOver, Mailbox, settles, settles_here, settles_on_loop

try:
    import uvloop
except ImportError:  # the extra `fast`; there is none for Windows
    uvloop = None  # type: ignore[assignment]

T = TypeVar("T")

_DRAIN_S = 1.0


def new_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop, which is not running yet."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()


class LoopTasks:
    """Runs coroutines on an event loop, for callers on another loop or on a plain thread.

    Args:
        loop: runs them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._mailbox = Mailbox.of(loop)
        self._tasks: set[asyncio.Task[None]] = set()  # a loop itself keeps none alive

    def submit(self, call: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run the coroutine that `call` makes."""
        future: Future[T] = Future()
        self._mailbox.put(lambda: self._start(call, settles(future)))
        return future

    def ask(self, call: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Run a coroutine; return a future of the running loop, which cancels the coroutine."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        is_here = loop is self._loop
        do = _now if is_here else self._mailbox.put
        hand_over = (settles_here if is_here else settles_on_loop)(future)
        started: list[asyncio.Task[None]] = []

        def start() -> None:
            if not future.cancelled():
                started.append(self._start(call, hand_over))

        def cancel(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                do(lambda: [task.cancel() for task in started])

        do(start)
        future.add_done_callback(cancel)
        return future

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine like `ask`; on the loop itself, in the caller's own task."""
        if asyncio.get_running_loop() is not self._loop:
            return await self.ask(call)
        task: asyncio.Task[Any] | None = asyncio.current_task()
        if task is None or task in self._tasks:
            return await call()
        self._tasks.add(task)
        try:
            return await call()
        finally:
            self._tasks.discard(task)

    def stop(self) -> None:
        """Cancel all running coroutines; may be called on any thread."""
        self._mailbox.put(self.cancel)

    def cancel(self) -> None:
        """Cancel all running coroutines; called on the loop."""
        for task in list(self._tasks):
            task.cancel()

    def _start(self, call: Callable[[], Awaitable[Any]], hand_over: HandOver) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                result = await call()
            except BaseException as error:  # out of a task, SystemExit would end the loop
                hand_over(None, error)
            else:
                hand_over(result, None)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # before it began
                hand_over(None, asyncio.CancelledError())

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task


def _now(call: Callable[[], object]) -> None:
    call()


class DaemonLoop(LoopTasks):
    """Runs coroutines on an event loop, on a daemon thread that it has from `open` to `close`.

    A closed loop is paused and keeps its resources, such as the connections of a client, so that
    they can be used when the loop is opened again.

    Args:
        name: names the thread.
        loop: a loop that is not running yet; None makes one.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(loop or new_loop())
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._state = _LoopState()
        weakref.finalize(self, _discard, self._loop, self._state)

    def open(self) -> bool:
        """Run the loop on a thread; return False if it is already running."""
        with self._lock:
            if self._thread is not None:
                return False
            self._state.runs = True
            run = functools.partial(_run_until_closed, self._loop, self._tasks, self._state)
            self._thread = threading.Thread(target=run, name=self._name, daemon=True)
            self._thread.start()
            return True

    def tasks(self) -> LoopTasks:
        """Return a runner of tasks on this loop, which can be cancelled separately."""
        return LoopTasks(self._loop)

    @property
    def is_current(self) -> bool:
        """True on the thread of this loop."""
        return threading.current_thread() is self._thread

    def close(self, seconds: float) -> bool:
        """Cancel the running tasks; return True if the loop stops within `seconds`.

        If a call blocks the loop, the loop ends when the call returns, and must not be opened
        again.
        """
        with self._lock:
            if self._thread is None:
                return True
            self._mailbox.put(self._loop.stop)
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
            self._thread = None
            return True

    def end(self, seconds: float) -> None:
        """Close it permanently, and cancel everything that is left on the loop."""
        with self._state.lock:
            self._state.is_over = True
        self.close(seconds)


class KeptLoop:
    """A `DaemonLoop` that is kept between uses, and replaced if something blocks it.

    The connections of an environment's client, for example, stay open between two uses.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: DaemonLoop | None = None

    def open(self) -> DaemonLoop:
        """Return the loop, running."""
        with self._lock:
            if self._loop is None:
                self._loop = DaemonLoop(self._name)
            self._loop.open()
            return self._loop

    def close(self, seconds: float) -> None:
        """Stop the loop until it is opened again."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and loop.close(seconds):
            with self._lock:
                self._loop = self._loop or loop


class _LoopState:
    """The state of a loop: a thread runs it or not, and it will be opened again or not."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runs = False
        self.is_over = False


def _run_until_closed(
    loop: asyncio.AbstractEventLoop, tasks: set["asyncio.Task[None]"], state: _LoopState
) -> None:
    loop.run_forever()
    _end(loop, set(tasks))
    with state.lock:
        state.runs = False
        is_over = state.is_over
    if is_over:
        _discard(loop, state)


def _discard(loop: asyncio.AbstractEventLoop, state: _LoopState) -> None:
    """End everything that is left on a loop that will not be opened again, now or when it stops."""
    with state.lock:
        state.is_over = True
        if state.runs:
            return
    with suppress(RuntimeError):  # collected in the middle of another loop's work
        _end(loop, asyncio.all_tasks(loop))
    loop.close()
    Mailbox.drop(loop)


def _end(loop: asyncio.AbstractEventLoop, tasks: set["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_DRAIN_S))


def is_cancelled() -> bool:
    """Return True if this task was cancelled; else an awaited object raised CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
