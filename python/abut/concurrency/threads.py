"""Threads that a hanging environment cannot hold hostage.

`concurrent.futures` joins its threads when the interpreter exits, so one environment that never
returns would keep the process alive. These are daemons. All of the process share them: since a
thread is started where none is idle, no call ever waits for another one's thread, and how many run
at once is for those who ask to bound.

Invariant: a thread is one borrower's until that one gives it back, and runs its calls in their
order, each once, unless it is cancelled before. Whatever a call raises, `SystemExit` included, goes
to who waits for it and ends no thread.
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
# To start a thread takes about 0.1 ms, a ten-thousandth of this: to wait longer would save nothing.
# To end much sooner would start a batch's threads anew at every turn that takes long to sample.
_IDLE_S = 1.0
# One that runs, and one that will run as soon as that waits for something.
_WAKE_AT_ONCE = 2


class _Work(NamedTuple):
    """A call, whether it is still wanted, and who gets `(result, error)`."""

    call: Callable[[], Any]
    is_wanted: Callable[[], bool]
    hand_over: HandOver
    is_last: bool
    """Of who borrowed the thread."""


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


class DaemonThread:
    """A thread that is one borrower's; the system's is found or started when it is first needed.

    So calls that are over soon need no more of them than are at work at once, however many are
    asked for in one moment.
    """

    def __init__(self, threads: "DaemonThreads") -> None:
        self._threads = threads
        self._worker: _Worker | None = None
        self._lock = threading.Lock()
        self._calls: deque[_Work] = deque()
        self._is_awake = False
        self._ends_with_call = False

    def submit(self, call: Callable[[], T], *, last: bool = False) -> Future[T]:
        """Run `call` behind those before it; with the `last` one the thread is given back.

        What waits for it gets an EnvError where the system starts no more threads.
        """
        future: Future[T] = Future()
        wanted = future.set_running_or_notify_cancel
        self._put(_Work(call, wanted, settles(future), last))
        return future

    def ask(self, call: Callable[[], T], *, last: bool = False) -> asyncio.Future[T]:
        """As `submit`, for who waits on the running loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Work(call, lambda: not future.cancelled(), settles_on_loop(future), last))
        return future

    def give_back(self) -> None:
        """Lend it to others, once the calls before have returned."""
        with self._lock:
            is_unused = self._worker is None and not self._is_awake
        if not is_unused:
            self.submit(_nothing, last=True)

    def end_with_call(self) -> None:
        """Lend it to others once the call that runs now has returned; for that call itself."""
        self._ends_with_call = True

    def frame(self) -> FrameType | None:
        """What it runs at this moment; None where it has no thread of the system."""
        worker = self._worker
        return None if worker is None else sys._current_frames().get(worker.ident)

    def wake(self, alarm: "_Alarm | None" = None) -> None:
        """Have its calls begun, and the alarm that woke it told so.

        Raises:
            RuntimeError: the system starts no more threads.
        """
        if self._worker is None:
            self._worker = self._threads.worker()
        self._worker.begin(self, alarm)

    def work(self, worker: "_Worker") -> None:
        """Run its calls, there."""
        while (work := self._next()) is not None:
            result, error = None, None
            wanted = work.is_wanted()
            if wanted:
                try:
                    result = work.call()
                except BaseException as raised:  # handed to whoever waits
                    error = raised
            ends = work.is_last or self._ends_with_call
            goes_on = ends and self._leave()
            if ends:  # before the result is seen, so that the next call finds this worker
                worker.is_free()
            if wanted:
                work.hand_over(result, error)
            if goes_on:
                self._threads.alarm.wake(self)
            if ends:
                return
            del work, result, error

    def fail(self, error: EnvError) -> None:
        """Hand it to whoever waits for its calls."""
        with self._lock:
            calls, self._calls = self._calls, deque()
            self._is_awake = False
        for work in calls:
            if work.is_wanted():
                work.hand_over(None, error)

    def _put(self, work: _Work) -> None:
        with self._lock:
            self._calls.append(work)
            sleeps, self._is_awake = not self._is_awake, True
        if sleeps:
            self._threads.alarm.wake(self)

    def _leave(self) -> bool:
        """Have no worker any more; whether there are calls, for which another one is needed."""
        with self._lock:
            self._worker = None
            self._is_awake = bool(self._calls)
            return self._is_awake

    def _next(self) -> _Work | None:
        with self._lock:
            if self._calls:
                return self._calls.popleft()
            self._is_awake = False
            return None


class _Worker:
    """A thread of the system; it ends when nobody needed it for a second."""

    def __init__(self, idle: "_Idle", name: str) -> None:
        self._idle = idle
        self._bell: queue.SimpleQueue[tuple[DaemonThread, _Alarm | None]] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        thread.start()
        self.ident: int = thread.ident or 0

    def begin(self, thread: DaemonThread, alarm: "_Alarm | None") -> None:
        """Run what it has to do, and tell the alarm that it runs."""
        self._bell.put((thread, alarm))

    def is_free(self) -> None:
        """Note that nobody has it any more."""
        self._idle.add(self)

    def _run(self) -> None:
        while (order := self._wait()) is not None:
            thread, alarm = order
            if alarm is not None:
                alarm.is_up()
            thread.work(self)
            del order, thread  # what it held lives no longer than its calls

    def _wait(self) -> "tuple[DaemonThread, _Alarm | None] | None":
        while True:
            try:
                return self._bell.get(timeout=_IDLE_S if self._idle.has(self) else None)
            except queue.Empty:
                if self._idle.remove(self):
                    return None


class _Alarm:
    """Wakes threads a few at a time: each that is up wakes the next.

    A thread that is awake asks for the GIL two hundred times a second until it has it. Where a
    thousand are woken at once, that is a quarter of what the process does.

    Invariant: while threads wait to be woken, one is on its way up.
    """

    def __init__(self) -> None:
        self._asleep: deque[DaemonThread] = deque()
        self._free = deque([None] * _WAKE_AT_ONCE)

    def wake(self, thread: DaemonThread) -> None:
        """Wake it now, or when those before it are up."""
        if threading.current_thread() is threading.main_thread():
            # A Ctrl-C between two of the steps below would end the chain.
            _wake(thread, None)
        else:
            self._asleep.append(thread)
            self._wake_next()

    def is_up(self) -> None:
        """Note that a thread which this has woken runs."""
        self._free.append(None)
        self._wake_next()

    def _wake_next(self) -> None:
        # Both are taken in one step each, whoever else does: a lock would be waited for.
        while self._asleep:
            try:
                self._free.pop()
            except IndexError:
                return  # those that are on their way will
            try:
                thread = self._asleep.popleft()
            except IndexError:
                self._free.append(None)
            else:
                if not _wake(thread, self):
                    self._free.append(None)


def _wake(thread: DaemonThread, alarm: _Alarm | None) -> bool:
    """Whether it could be; else those who wait are told."""
    try:
        thread.wake(alarm)
    except RuntimeError as error:
        told = EnvError(
            f"no thread could be started for an environment: {text_of(error)}\n"
            "hint: each synchronous environment has a thread of its own; set max_rollouts, or make "
            "reset and step `async def`"
        )
        told.__cause__ = error
        thread.fail(told)
        return False
    return True


class _Idle:
    """The workers that nobody has.

    Each look is one step for all threads. A lock could be held while the garbage collector ends an
    environment, whose thread is given back there and then.
    """

    def __init__(self) -> None:
        self._workers: dict[_Worker, None] = {}

    def add(self, worker: _Worker) -> None:
        """Have one more."""
        self._workers[worker] = None

    def has(self, worker: _Worker) -> bool:
        """Whether nobody has it."""
        return worker in self._workers

    def remove(self, worker: _Worker) -> bool:
        """Whether nobody has it; then nobody gets it any more."""
        return self._workers.pop(worker, self) is None

    def take(self) -> _Worker | None:
        """The one that ran last: those that are needed less end sooner."""
        try:
            return self._workers.popitem()[0]
        except KeyError:
            return None


class DaemonThreads:
    """Lends daemon threads; one starts where none is idle, and ends when idle for a second.

    Each stays for the life of the process, without threads where nobody calls.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Have no thread yet: a forked child has none, and nobody who is on the way up."""
        self._idle = _Idle()
        self.alarm = _Alarm()
        self._numbers = iter(range(1, sys.maxsize))

    def lend(self) -> DaemonThread:
        """A thread that nobody else has until it was given back."""
        return DaemonThread(self)

    def worker(self) -> _Worker:
        """One that is idle, or a new one.

        Raises:
            RuntimeError: the system starts no more.
        """
        return self._idle.take() or _Worker(self._idle, f"{self._name}-{next(self._numbers)}")

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` on any thread."""
        return self.lend().submit(call, last=True)

    def ask(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """As `submit`, for who waits on the running loop."""
        return self.lend().ask(call, last=True)


def _nothing() -> None: ...


THREADS = DaemonThreads("abut-thread")
"""Those of this process."""


async def work_done(quick: bool, work: Callable[[], T]) -> T:
    """Do what is quick here, all else on a thread.

    Raises:
        CancelledError: the caller was cancelled; the work is done all the same by then, and
            nothing of it changes any more.
    """
    if quick:
        return work()
    working = THREADS.ask(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})  # nobody else may touch what it still writes
        raise
