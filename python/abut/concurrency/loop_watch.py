"""An event loop that foreign coroutines share, and a thread that detects if one of them blocks it.

A coroutine that blocks (`time.sleep`, a synchronous client) delays all others on its loop, and
their deadlines pass meanwhile. The watch sends the loop a ping ten times a second. While a ping is
not answered, the loop is blocked, by the call whose task is running at that moment.

Invariant: time in which the loop was blocked counts only against the call that blocked it, as long
as the result of that call is awaited. The watch is off while no call runs.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from abut.concurrency.loop import DaemonLoop

T = TypeVar("T")
F = TypeVar("F", asyncio.Future[Any], Future[Any])

BLOCKS_S = 1.0
_PING_S = 0.1
# A batch whose environments wait for samples is often without a call for a moment.
_IDLE_PINGS = 10
_CALLERS = ("abut/concurrency/", "asyncio/events.py", "asyncio/base_events.py")


class WatchedCall(Generic[T]):
    """One call on a watched loop.

    Attributes:
        kind: the unit that the watch blames, such as an environment's class.
        name: the name of the call in warnings.
        future: its result, on the loop of the caller.
        blocked_s: how long this call has blocked the loop.
        is_over: True when its result is no longer awaited.
    """

    future: asyncio.Future[T]

    def __init__(self, watch: "LoopWatch", kind: Any, name: str) -> None:
        self.kind, self.name = kind, name
        self.blocked_s = 0.0
        self.is_over = False
        self.watch = watch
        self._stood_before_s = watch.stood_s()

    @property
    def is_held_up(self) -> bool:
        """Return whether a call of another kind blocks the loop beyond its own deadline."""
        lost_to = self.watch.lost_to
        return lost_to is not None and lost_to[0].kind is not self.kind

    @property
    def blocked_at(self) -> str:
        """The place of the call that blocks the loop beyond its own deadline."""
        lost_to = self.watch.lost_to
        return "" if lost_to is None else f"It is here (most recent call last):\n{lost_to[1]}"

    @property
    def blamed(self) -> str:
        """The text that an error adds if another call blocks the loop beyond its own deadline."""
        lost_to = self.watch.lost_to
        if lost_to is None or lost_to[0] is self:
            return ""
        return f", because {lost_to[0].name} blocks the event loop on which both run"

    def spared_s(self) -> float:
        """Return how long other calls have blocked the loop since this call began."""
        return self.watch.stood_s() - self._stood_before_s - self.blocked_s


OnBlock = Callable[[WatchedCall[Any] | None, str], object]
OnLoss = Callable[["LoopWatch"], object]


class LoopWatch:
    """Watches one event loop while calls run on it.

    Args:
        loop: the loop to watch.
        on_block: called on the watch's thread when the loop has been blocked for `BLOCKS_S`, with
            the call that blocks it (None: a callback of an unknown call) and the position in its
            code.
        on_loss: called on that thread when a call that still blocks the loop is no longer awaited.

    Attributes:
        lost_to: the call that has blocked the loop beyond its own deadline, and its position.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_block: OnBlock, on_loss: OnLoss) -> None:
        self.lost_to: tuple[WatchedCall[Any], str] | None = None
        self._loop = loop
        self._on_block, self._on_loss = on_block, on_loss
        self._call_of = WeakKeyDictionary[asyncio.Task[Any], WatchedCall[Any]]()
        loop.set_task_factory(_inheriting(self._call_of))
        # Reentrant, because a garbage collection in between may end an abandoned call.
        self._lock = threading.RLock()
        self._running = 0
        self._thread_id = 0
        self._stop: threading.Event | None = None
        self._is_pinged = False
        self._blocker: WatchedCall[Any] | None = None
        self._counted = 0.0
        self._seen = 0
        self._is_told = False
        self._stood_s = 0.0

    def stood_s(self) -> float:
        """Return how long awaited calls have blocked the loop so far."""
        with self._lock:
            self._count()
            return self._stood_s

    def begin(self) -> None:
        """Watch while one more call runs; may be called on any thread."""
        with self._lock:
            self._running += 1
            if self._stop is None:
                stop = self._stop = threading.Event()
                threading.Thread(
                    target=self._watch, args=(stop,), name="abut-loop-watch", daemon=True
                ).start()

    def end(self, call: WatchedCall[Any]) -> None:
        """Note that a call is over."""
        with self._lock:
            self._count()
            call.is_over = True
            self._running -= 1

    def runs_here(self, call: WatchedCall[Any]) -> None:
        """Note that the current task, and those that it starts, belong to a call."""
        task = asyncio.current_task()
        assert task is not None
        self._call_of[task] = call
        _CALL.set(call)
        self._thread_id = threading.get_ident()

    def stop(self) -> None:
        """Stop watching until the next call begins."""
        with self._lock:
            stop, self._stop = self._stop, None
            self._is_pinged, self._blocker = False, None
        if stop is not None:
            stop.set()

    def _watch(self, stop: threading.Event) -> None:
        idle = 0
        while not stop.wait(_PING_S):
            idle = 0 if self._running else idle + 1
            with self._lock:
                if idle > _IDLE_PINGS and not self._running and self._stop is stop:
                    self._stop = None
                    return
            self._look()

    def _look(self) -> None:
        task = asyncio.current_task(self._loop)
        with self._lock:
            if not self._is_pinged:
                self._is_pinged = True
                self._counted = time.monotonic()
                self._loop.call_soon_threadsafe(self._answer)
                return
            # A loop with much to do answers late as well, but another task runs at each look.
            blocker = None if task is None else self._call_of.get(task)
            if blocker is not self._blocker:
                self._count()
                self._blocker, self._is_told = blocker, False
                self._seen = 0
            self._count()
            self._seen += 1
            if blocker is None:
                self._counted = time.monotonic()
            # Looks, not seconds: a process that was stopped for a while has not been blocked.
            if self._seen * _PING_S < BLOCKS_S:
                return
            is_told, self._is_told = self._is_told, True
        place = self._place()
        if not is_told and place:
            self._on_block(blocker, place)
        if blocker is not None and blocker.is_over and self.lost_to is None:
            self.lost_to = blocker, place
            self._on_loss(self)

    def _answer(self) -> None:
        with self._lock:
            self._count()
            self._is_pinged, self._blocker = False, None
            self._seen, self._is_told = 0, False

    def _count(self) -> None:
        if self._blocker is None:
            return  # the next check determines what blocks, and counts from the ping
        now = time.monotonic()
        if not self._blocker.is_over:
            self._stood_s += now - self._counted
            self._blocker.blocked_s += now - self._counted
        self._counted = now

    def _place(self) -> str:
        """Return the foreign part of the stack on the loop's thread."""
        frames = traceback.extract_stack(sys._current_frames().get(self._thread_id))
        callers = [
            at
            for at, frame in enumerate(frames)
            if any(caller in frame.filename.replace("\\", "/") for caller in _CALLERS)
        ]
        return "".join(traceback.format_list(frames[callers[-1] + 1 :] if callers else frames))


class WatchedLoop(DaemonLoop):
    """A daemon loop whose calls are watched.

    Attributes:
        watch: watches it.
    """

    def __init__(self, name: str, on_block: OnBlock, on_loss: OnLoss) -> None:
        super().__init__(name)
        self.watch = LoopWatch(self._loop, on_block, on_loss)

    def call(
        self, kind: Any, name: str, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> WatchedCall[T]:
        """Run the coroutine that `call` makes; return a future of the running loop."""
        watched: WatchedCall[T] = WatchedCall(self.watch, kind, name)
        watched.future = self._begin(watched, call, self.ask)
        return watched

    def submit_call(
        self, kind: Any, name: str, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> Future[T]:
        """Run a coroutine like `call`, for a caller that is not on an event loop."""
        return self._begin(WatchedCall(self.watch, kind, name), call, self.submit)

    def _begin(
        self,
        watched: WatchedCall[T],
        call: Callable[[], Coroutine[Any, Any, T]],
        start: Callable[[Callable[[], Coroutine[Any, Any, T]]], F],
    ) -> F:
        watch = self.watch

        async def run() -> T:
            watch.runs_here(watched)
            return await call()

        watch.begin()
        future = start(run)
        future.add_done_callback(lambda _: watch.end(watched))
        return future

    def close(self, seconds: float) -> bool:
        """End the watch, and close the loop."""
        self.watch.stop()
        return super().close(seconds)


async def wait_sparing(tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Wait for all tasks, with a time limit.

    If the caller runs on a watched loop, time in which other calls block that loop does not count.
    """
    call = _CALL.get()
    spared_before_s = 0.0 if call is None else call.spared_s()
    due = time.monotonic() + seconds
    while True:
        spared_s = 0.0 if call is None else call.spared_s() - spared_before_s
        left_s = due + spared_s - time.monotonic()
        _, running = await asyncio.wait(tasks, timeout=max(0.0, left_s))
        if not running or left_s <= 0:
            return


def _inheriting(call_of: WeakKeyDictionary[asyncio.Task[Any], WatchedCall[Any]]) -> Any:
    """Return a task factory whose tasks belong to the call that starts them."""

    def make(loop: asyncio.AbstractEventLoop, coro: Awaitable[T], **options: Any) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)  # type: ignore[arg-type]
        if (call := _CALL.get()) is not None:
            call_of[task] = call
        return task

    return make


_CALL: ContextVar[WatchedCall[Any] | None] = ContextVar("abut_watched_call", default=None)
