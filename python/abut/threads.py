"""Threads and a loop that a hanging environment cannot hold hostage.

`concurrent.futures` joins its threads when the interpreter exits, so one environment that never
returns would keep the process alive. These are daemons, and their number is bounded by the caller.
Whatever a call raises, `SystemExit` included, goes to who waits for it and ends no thread.
"""

import asyncio
import functools
import queue
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar

from abut.error_text import text_of

T = TypeVar("T")
HandOver: TypeAlias = Callable[[Any, BaseException | None], None]

_LOOK_UP_S = 0.25
_DRAIN_S = 1.0


class _Work(NamedTuple):
    """A call, whether it is still wanted, and who gets `(result, error)`."""

    call: Callable[[], Any]
    is_wanted: Callable[[], bool]
    hand_over: HandOver


class InterruptibleQueue(queue.SimpleQueue[T]):
    """A queue whose reader looks up four times a second.

    A Ctrl-C in the moment before it begins to wait would be seen only after the next item.
    """

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Wait for the next item; without a timeout for as long as it takes."""
        while block and timeout is None:
            with suppress(queue.Empty):
                return super().get(timeout=_LOOK_UP_S)
        return super().get(block, timeout)


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
        self._put(_Work(call, future.set_running_or_notify_cancel, _to(future)))
        return future

    def ask(self, call: Callable[[], T], mailbox: "Mailbox") -> asyncio.Future[T]:
        """Run `call` on a thread for who waits on the loop of `mailbox`."""
        future: asyncio.Future[T] = mailbox.loop.create_future()
        self._put(_Work(call, lambda: not future.cancelled(), mailbox.to(future)))
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


class SharedThreads:
    """Threads that all episodes of a batch share, so that there are no more than calls at once.

    They end with the last episode.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._episodes = 0
        self._threads: DaemonThreads | None = None

    def enter(self) -> DaemonThreads:
        """Give an episode the threads, until it leaves them."""
        with self._lock:
            self._episodes += 1
            if self._threads is None:
                self._threads = DaemonThreads(self._name)
            return self._threads

    def leave(self) -> None:
        """Let the threads end if nobody else has them; one whose call hangs, when that returns."""
        with self._lock:
            self._episodes -= 1
            threads = self._threads
            if self._episodes or threads is None:
                return
            self._threads = None
        threads.close()


class DaemonLoop:
    """Runs coroutines on an event loop, on a daemon thread that it has from `open` to `close`.

    In between it stands still and keeps what belongs to it, connections of a client for example,
    so that they can be used when it is opened again.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._mailbox = Mailbox(asyncio.new_event_loop())
        self._tasks: set[asyncio.Task[None]] = set()  # a loop itself keeps none alive
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._use = _Use()
        weakref.finalize(self, _discard, self._mailbox.loop, self._use)

    def open(self) -> None:
        """Go on, on a thread; nothing where it runs already."""
        with self._lock:
            if self._thread is not None:
                return
            self._use.runs = True
            run = functools.partial(_run_until_closed, self._mailbox.loop, self._tasks, self._use)
            self._thread = threading.Thread(target=run, name=self._name, daemon=True)
            self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether this is its thread."""
        return threading.current_thread() is self._thread

    def submit(self, call: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run the coroutine that `call` makes."""
        future: Future[T] = Future()
        self._mailbox.put(lambda: self._start(call, _to(future)))
        return future

    def ask(self, call: Callable[[], Awaitable[T]], mailbox: "Mailbox") -> asyncio.Future[T]:
        """Run it for who waits on the loop of `mailbox`; it is cancelled where the future is."""
        future: asyncio.Future[T] = mailbox.loop.create_future()
        started: list[asyncio.Task[None]] = []

        def start() -> None:
            if not future.cancelled():
                started.append(self._start(call, mailbox.to(future)))

        def cancel(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                self._mailbox.put(lambda: [task.cancel() for task in started])

        self._mailbox.put(start)
        future.add_done_callback(cancel)
        return future

    def close(self, seconds: float) -> bool:
        """Cancel what it was given and still runs; returns whether it stands still in so long.

        Where something blocks it, it ends when that returns, and must not be opened again.
        """
        with self._lock:
            if self._thread is None:
                return True
            self._mailbox.put(self._mailbox.loop.stop)
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
            self._thread = None
            return True

    def end(self, seconds: float) -> None:
        """Close it for good: cancel also what others left on the loop."""
        with self._use.lock:
            self._use.is_over = True
        self.close(seconds)

    def _start(self, call: Callable[[], Awaitable[Any]], hand_over: HandOver) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                result = await call()
            except BaseException as error:  # out of a task, SystemExit would end the loop
                hand_over(None, error)
            else:
                hand_over(result, None)

        task = self._mailbox.loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Use:
    """Whether a thread runs a loop, and whether anybody will open it again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runs = False
        self.is_over = False


def _run_until_closed(
    loop: asyncio.AbstractEventLoop, tasks: set["asyncio.Task[None]"], use: _Use
) -> None:
    loop.run_forever()
    _end(loop, set(tasks))
    with use.lock:
        use.runs = False
        is_over = use.is_over
    if is_over:
        _discard(loop, use)


def _discard(loop: asyncio.AbstractEventLoop, use: _Use) -> None:
    """End what others have left on a loop that nobody will open again, now or when it stops."""
    with use.lock:
        use.is_over = True
        if use.runs:
            return
    with suppress(RuntimeError):  # collected in the middle of another loop's work
        _end(loop, asyncio.all_tasks(loop))
    loop.close()


def _end(loop: asyncio.AbstractEventLoop, tasks: set["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_DRAIN_S))


def is_cancelled() -> bool:
    """Whether somebody cancelled this task; else its CancelledError is that of what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Mailbox:
    """Calls that threads leave for an event loop.

    The loop is woken once for all that are there by then: waking it for each, as
    `asyncio.wrap_future` does, costs more than what a usual environment does in a step.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def put(self, call: Callable[[], object]) -> None:
        """Have the loop call this, which must not raise; from any thread."""
        self._calls.append(call)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self.loop.call_soon_threadsafe(self._empty)

    def to(self, future: asyncio.Future[Any]) -> HandOver:
        """Return what settles a future of the loop, from any thread."""

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(_deliverable(error))

        return lambda result, error: self.put(lambda: settle(result, error))

    def _empty(self) -> None:
        # First: what is put from here on either is seen below or wakes the loop again.
        self._is_woken = False
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            if self._calls and not self._is_woken:  # one raised: a defect, but not of the others
                self._is_woken = True
                self.loop.call_soon(self._empty)


def _deliverable(error: BaseException) -> BaseException:
    """What a future can hold: a StopIteration would end the coroutine that waits for it."""
    if not isinstance(error, StopIteration):
        return error
    stopped = RuntimeError(text_of(error))
    stopped.__cause__ = error
    return stopped


def _to(future: Future[Any]) -> HandOver:
    def settle(result: Any, error: BaseException | None) -> None:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    return settle
