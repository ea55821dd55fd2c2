"""Time limits that pause while others cause a delay, and the waits between retries.

Invariant: a limit is reached only after its seconds have passed on the clock of its rollout: pauses
and delays caused by others do not count. A cancellation from outside is never mistaken for the
limit's own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


class DeadlineExpired(Exception):
    """The limit was reached; unlike a `TimeoutError`, the awaited code cannot have raised this."""


class _Limit:
    """The limit of the task that creates it, with a single timer of the event loop.

    The timer is moved only if the next limit is earlier. A timer that fires too early is set again.
    `asyncio.timeout` sets and cancels a timer for each wait, which took a sixth of the engine's CPU
    time per turn.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(self._loop)
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        """When the limit is reached, by the loop's clock; None: it is paused."""
        self._spared: Callable[[], float] = _nothing
        self._expired = False
        self._cancelling = 0

    def close(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, seconds: float, spared: Callable[[], float]) -> None:
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._spared, self._expired = spared, False
        self._set(self._loop.time() + seconds)

    def _set(self, due: float | None) -> None:
        self._due = due
        if due is not None and (self._timer is None or self._timer.when() > due):
            self._wait(due)

    def _wait(self, until: float) -> None:
        self.close()
        self._timer = self._loop.call_at(until, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._due is None:
            return
        due = self._due + self._spared()
        if self._loop.time() < due:
            self._wait(due)
        else:
            self._reached(self._due)

    def _reached(self, due: float) -> None:
        self._expired = True
        assert self._task is not None
        self._task.cancel()

    def _has_cancelled(self) -> bool:
        """Return whether only this limit has cancelled the task."""
        assert self._task is not None
        return self._expired and self._task.uncancel() <= self._cancelling


class Deadline(_Limit):
    """Limits consecutive waits of the task that creates it."""

    async def keep(
        self, awaitable: Awaitable[T], seconds: float, *, spared: Callable[[], float] | None = None
    ) -> T:
        """Await something, with a limit.

        Args:
            awaitable: the object to await.
            seconds: the limit.
            spared: returns how many seconds of the wait do not count; called when the limit is
                reached.

        Raises:
            DeadlineExpired: it took longer, and was cancelled.
        """
        self._begin(seconds, spared or _nothing)
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self._has_cancelled():
                raise DeadlineExpired from None
            raise
        finally:
            self._due, self._spared = None, _nothing


class TimeLimit(_Limit):
    """Limits the code inside `async with`, like `asyncio.timeout`, on a clock that can pause.

    Args:
        seconds: the limit.
        spared: returns how many seconds do not count so far; called when the limit is reached.
    """

    def __init__(self, seconds: float, spared: Callable[[], float]) -> None:
        super().__init__()
        self._given = seconds, spared
        self._pauses = 0
        self._left_s = 0.0
        """The seconds that were left when the pause began."""
        self._when_over: tuple[Callable[[], object], float] | None = None

    def expired(self) -> bool:
        """True once the limit has ended the code inside."""
        return self._expired

    def on_over(self, call: Callable[[], object], grace_s: float) -> None:
        """Call a function when the limit is reached, and end the code inside some seconds later."""
        self._when_over = call, grace_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the clock while any task is inside."""
        self._pauses += 1
        if self._pauses == 1 and self._due is not None:
            self._left_s = self._due - self._loop.time()
            self._set(None)
        try:
            yield
        finally:
            self._pauses -= 1
            # A pause may outlast the code inside, whose task is None then.
            if not self._pauses and self._task is not None and not self._expired:
                self._set(self._loop.time() + self._left_s)

    async def __aenter__(self) -> Self:
        self._begin(*self._given)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        is_ours = self._has_cancelled()
        self._due = self._task = self._when_over = None
        # `spared` may refer to an environment, which is to be collected at once.
        self._spared = _nothing
        self._given = (0.0, _nothing)
        if is_ours and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _reached(self, due: float) -> None:
        if self._when_over is None:
            super()._reached(due)
            return
        (call, grace_s), self._when_over = self._when_over, None
        self._set(due + grace_s)
        call()


def backoff(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield the seconds to wait after each consecutive failure; use a new one after a success.

    They double up to `longest_s`. The first wait is the cost of a failure that passes immediately,
    so it is short compared with a turn: 0.05 s for a vLLM server that is paused while it gets
    weights, 0.1 s for a server that fails and for an OpenEnv server without a free session. The
    longest wait is the delay in noticing that the server works again: 2 s for failures that last
    seconds, such as a pause or a busy session; 5 s for a vLLM server that fails, because restarting
    it takes minutes. The waits have no jitter, because only the few ranks of one training run
    retry.
    """
    wait_s = first_s
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, longest_s)


def _nothing() -> float:
    return 0.0
