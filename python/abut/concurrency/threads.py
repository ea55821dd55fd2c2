"""A cache of daemon threads, and queues of calls that each use one of its threads.

`concurrent.futures` joins its threads when the interpreter exits, so one environment that never
returns would keep the process alive. These threads are daemons, and the whole process shares them.
If no thread is idle, a new one is started, so a call never waits for a thread that another call
uses. The callers limit how many calls run at once.

Invariant: a queue keeps its thread until the queue gives it back. The thread runs the calls of the
queue in order, each once, unless a call is cancelled before. Whatever a call raises, including
`SystemExit`, goes to the future of that call and does not end the thread.
"""

import asyncio
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from abut.concurrency.mailbox import HandOver, settles, settles_on_loop
from abut.errors import EnvError, text_of

T = TypeVar("T")

_LOOK_UP_S = 0.25
# Starting a thread takes about 0.1 ms, a ten-thousandth of this, so a longer wait would save
# nothing. A much shorter wait would restart a batch's threads at every turn that samples slowly.
_IDLE_S = 1.0
# One thread that runs, and one that runs as soon as the first waits for something.
_WAKE_AT_ONCE = 2


class _QueuedCall(NamedTuple):
    """A call, a test for whether it is still wanted, and the receiver of `(result, error)`."""

    call: Callable[[], Any]
    is_wanted: Callable[[], bool]
    hand_over: HandOver
    is_last: bool
    """True if the queue gives its thread back after this call."""


class InterruptibleQueue(queue.SimpleQueue[T]):
    """A queue whose reader wakes four times a second.

    Otherwise a Ctrl-C just before `get` begins to wait would be noticed only after the next item.
    """

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Wait for the next item; without a timeout, as long as it takes."""
        while block and timeout is None:
            with suppress(queue.Empty):
                return super().get(timeout=_LOOK_UP_S)
        return super().get(block, timeout)


class CallQueue:
    """Calls that run in order, all on the same thread.

    The thread is taken from the cache only when the first call is due. So a thousand queues of
    short calls, made at the same time, need only as many threads as calls run at once.
    """

    def __init__(self, cache: "ThreadCache") -> None:
        self._cache = cache
        self._thread: _CachedThread | None = None
        self._lock = threading.Lock()
        self._calls: deque[_QueuedCall] = deque()
        self._is_awake = False
        self._ends_with_call = False

    def submit(self, call: Callable[[], T], *, last: bool = False) -> Future[T]:
        """Run `call` after the earlier calls; after the `last` call, give the thread back.

        If the system cannot start a thread, the future gets an `EnvError`.
        """
        future: Future[T] = Future()
        wanted = future.set_running_or_notify_cancel
        self._put(_QueuedCall(call, wanted, settles(future), last))
        return future

    def ask(self, call: Callable[[], T], *, last: bool = False) -> asyncio.Future[T]:
        """Run `call` like `submit`, and return a future of the running loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_QueuedCall(call, lambda: not future.cancelled(), settles_on_loop(future), last))
        return future

    def give_back(self) -> None:
        """Give the thread back to the cache after the earlier calls have returned."""
        with self._lock:
            is_unused = self._thread is None and not self._is_awake
        if not is_unused:
            self.submit(_nothing, last=True)

    def end_with_call(self) -> None:
        """Give the thread back when the current call returns; called by that call itself."""
        self._ends_with_call = True

    def frame(self) -> FrameType | None:
        """Return the current frame of its thread; None if it has no thread."""
        thread = self._thread
        return None if thread is None else sys._current_frames().get(thread.ident)

    def wake(self, waker: "_Waker | None" = None) -> None:
        """Begin its calls, and notify the waker.

        Raises:
            RuntimeError: the system cannot start a thread.
        """
        if self._thread is None:
            self._thread = self._cache.thread()
        self._thread.begin(self, waker)

    def run(self, thread: "_CachedThread") -> None:
        """Run its calls, on its thread."""
        while (work := self._next()) is not None:
            result, error = None, None
            wanted = work.is_wanted()
            if wanted:
                try:
                    result = work.call()
                except BaseException as raised:  # passed to the caller that waits
                    error = raised
            ends = work.is_last or self._ends_with_call
            goes_on = ends and self._leave_thread()
            if ends:  # before the result is seen, so that the next call finds this thread
                thread.is_free()
            if wanted:
                work.hand_over(result, error)
            if goes_on:
                self._cache.waker.wake(self)
            if ends:
                return
            del work, result, error

    def fail(self, error: EnvError) -> None:
        """End all its calls with this error."""
        with self._lock:
            calls, self._calls = self._calls, deque()
            self._is_awake = False
        for work in calls:
            if work.is_wanted():
                work.hand_over(None, error)

    def _put(self, work: _QueuedCall) -> None:
        with self._lock:
            self._calls.append(work)
            sleeps, self._is_awake = not self._is_awake, True
        if sleeps:
            self._cache.waker.wake(self)

    def _leave_thread(self) -> bool:
        """Leave the thread; return whether calls are left, which need another thread."""
        with self._lock:
            self._thread = None
            self._is_awake = bool(self._calls)
            return self._is_awake

    def _next(self) -> _QueuedCall | None:
        with self._lock:
            if self._calls:
                return self._calls.popleft()
            self._is_awake = False
            return None


class _CachedThread:
    """A thread that ends when no queue has needed it for a second."""

    def __init__(self, idle: "_IdleThreads", name: str) -> None:
        self._idle = idle
        self._orders: queue.SimpleQueue[tuple[CallQueue, _Waker | None]] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        thread.start()
        self.ident: int = thread.ident or 0

    def begin(self, calls: CallQueue, waker: "_Waker | None") -> None:
        """Run the calls of a queue, and notify the waker."""
        self._orders.put((calls, waker))

    def is_free(self) -> None:
        """Note that the thread has no queue any more."""
        self._idle.add(self)

    def _run(self) -> None:
        while (order := self._wait()) is not None:
            calls, waker = order
            if waker is not None:
                waker.is_up()
            calls.run(self)
            del order, calls  # a queue, and what it refers to, lives no longer than its calls

    def _wait(self) -> "tuple[CallQueue, _Waker | None] | None":
        while True:
            try:
                return self._orders.get(timeout=_IDLE_S if self._idle.has(self) else None)
            except queue.Empty:
                if self._idle.remove(self):
                    return None


class _Waker:
    """Wakes the threads of queues a few at a time; each thread that runs wakes the next.

    A thread that is awake requests the GIL two hundred times a second until it has it. If a
    thousand are woken at once, this takes a quarter of the CPU time of the process.

    Invariant: while queues wait to be woken, at least one thread is being woken.
    """

    def __init__(self) -> None:
        self._asleep: deque[CallQueue] = deque()
        self._free = deque([None] * _WAKE_AT_ONCE)

    def wake(self, calls: CallQueue) -> None:
        """Wake the thread of a queue now, or after the earlier ones."""
        if threading.current_thread() is threading.main_thread():
            # A Ctrl-C between two of the steps below would end the chain.
            _wake(calls, None)
        else:
            self._asleep.append(calls)
            self._wake_next()

    def is_up(self) -> None:
        """Note that a thread which this waker has woken is running."""
        self._free.append(None)
        self._wake_next()

    def _wake_next(self) -> None:
        # Each `pop` is one step for all threads. A lock would make threads wait for each other.
        while self._asleep:
            try:
                self._free.pop()
            except IndexError:
                return  # the threads that are on their way up will
            try:
                calls = self._asleep.popleft()
            except IndexError:
                self._free.append(None)
            else:
                if not _wake(calls, self):
                    self._free.append(None)


def _wake(calls: CallQueue, waker: _Waker | None) -> bool:
    """Wake the thread of a queue; return False, and end its calls with an error, if that fails."""
    try:
        calls.wake(waker)
    except RuntimeError as error:
        told = EnvError(
            f"could not start a thread for an environment: {text_of(error)}\n"
            "hint: each synchronous environment needs its own thread; lower max_rollouts, or "
            "make reset and step `async def`"
        )
        told.__cause__ = error
        calls.fail(told)
        return False
    return True


class _IdleThreads:
    """The threads without a queue.

    Each method is atomic without a lock. The garbage collector may end an environment while a lock
    is held, and would then give back its thread and deadlock.
    """

    def __init__(self) -> None:
        self._threads: dict[_CachedThread, None] = {}

    def add(self, thread: _CachedThread) -> None:
        """Add a thread."""
        self._threads[thread] = None

    def has(self, thread: _CachedThread) -> bool:
        """Return whether no queue has this thread."""
        return thread in self._threads

    def remove(self, thread: _CachedThread) -> bool:
        """Remove an idle thread, so that no queue gets it; return whether it was idle."""
        return self._threads.pop(thread, self) is None

    def take(self) -> _CachedThread | None:
        """Return the most recently used thread, so that rarely needed threads end sooner."""
        try:
            return self._threads.popitem()[0]
        except KeyError:
            return None


class ThreadCache:
    """Daemon threads; one starts if no thread is idle, and ends after a second without work.

    A cache lives as long as the process, and has no threads while it is unused.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Begin without threads, because a forked child does not have the threads of its parent."""
        self._idle = _IdleThreads()
        self.waker = _Waker()
        self._numbers = iter(range(1, sys.maxsize))

    def call_queue(self) -> CallQueue:
        """Make a queue, which takes a thread when its first call is due."""
        return CallQueue(self)

    def thread(self) -> _CachedThread:
        """Return an idle thread, or a new one.

        Raises:
            RuntimeError: the system cannot start a thread.
        """
        return self._idle.take() or _CachedThread(self._idle, f"{self._name}-{next(self._numbers)}")

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` on any thread."""
        return self.call_queue().submit(call, last=True)

    def ask(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call` like `submit`, and return a future of the running loop."""
        return self.call_queue().ask(call, last=True)


def _nothing() -> None: ...


THREADS = ThreadCache("abut-thread")
"""The threads of this process."""


async def work_done(quick: bool, work: Callable[[], T]) -> T:
    """Do quick work here, and any other work on a thread.

    Raises:
        CancelledError: the caller was cancelled. The work has been completed by then.
    """
    if quick:
        return work()
    working = THREADS.ask(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})  # its data must not be used while it still writes
        raise
