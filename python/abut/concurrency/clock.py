"""Time limits that do not count time lost to others, and the waits between retries.

Invariant: a limit fires only once its seconds are over on the clock of whoever it bounds: pauses,
and time for which others are to blame, are added to it. A cancellation from outside is never taken
for the limit's own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


class DeadlineExpired(Exception):
    """Ours, not a `TimeoutError` that was raised by what was waited for."""


class Deadline:
    """For one task, which makes it and waits for one thing at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._spared: Callable[[], float] = _nothing
        self._expired = False

    async def keep(
        self, awaitable: Awaitable[T], seconds: float, *, spared: Callable[[], float] | None = None
    ) -> T:
        """Wait for it so long.

        Args:
            awaitable: what is waited for.
            seconds: the limit.
            spared: how many seconds of the wait do not count; asked when the limit is reached.

        Raises:
            DeadlineExpired: it took longer, and was cancelled.
        """
        assert self._task is not None
        self._due = self._loop.time() + seconds
        self._spared = spared or _nothing
        self._expired = False
        cancelling = self._task.cancelling()
        if self._timer is None or self._timer.when() > self._due:
            self._set()
        try:
            return await awaitable
        except asyncio.CancelledError:
            # A cancellation from outside in the same moment is not ours to swallow.
            if self._expired and self._task.uncancel() <= cancelling:
                raise DeadlineExpired from None
            raise
        finally:
            self._due, self._spared = None, _nothing

    def close(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _set(self) -> None:
        assert self._due is not None
        self.close()
        self._timer = self._loop.call_at(self._due + self._spared(), self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._loop.time() < self._due + self._spared():
            self._set()
        else:
            self._expired = True
            assert self._task is not None
            self._task.cancel()


class SparingTimeout:
    """As `asyncio.timeout`, without the time for which others are to blame.

    Args:
        seconds: the limit.
        spared: how many seconds of it do not count so far; asked when the limit is reached.
    """

    def __init__(self, seconds: float, spared: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self._spared = spared
        self._due: float | None = self._loop.time() + seconds
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._expired = False

    def when(self) -> float | None:
        """When the limit is reached, by the loop's clock; None: it stands still."""
        return self._due

    def reschedule(self, when: float | None) -> None:
        """Set when the limit is reached; None lets it stand still."""
        self._due = when
        self._set(when)

    def spared_at_limit(self) -> float:
        """How many seconds do not count, for a limit that is reached now."""
        return self._spared()

    def expired(self) -> bool:
        """True once the limit has ended the code inside."""
        return self._expired

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._set(self._due)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._set(None)
        task, self._task = self._task, None
        self._spared = _nothing  # it may know an environment, which is to be collected at once
        # A cancellation from outside in the same moment is not ours to swallow.
        if (
            self._expired
            and task is not None
            and task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error

    def _set(self, when: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if when is None else self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._due is None:
            return
        due = self._due + self.spared_at_limit()
        if self._loop.time() < due:
            self._set(due)
        else:
            self._expired = True
            if self._task is not None:
                self._task.cancel()


def _nothing() -> float:
    return 0.0


def backoff(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield the seconds to wait after each failure in a row; after a success begin another one."""
    wait_s = first_s
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, longest_s)


GRACE_S = 5.0
"""How long an agent may take to end once its time is over and it gets no answer any more."""


class Clock:
    """The time of one attempt, on the loop of its batch.

    Args:
        timeout: ends the attempt, `GRACE_S` after its time is over.
        when_over: called when it is.
    """

    def __init__(self, timeout: SparingTimeout, when_over: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._when_over = when_over
        self._samples = 0
        self._since = 0.0
        due = timeout.when()
        self._left_s = None if due is None else due - self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._go_on()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stand still as long as anybody is in here."""
        if self._left_s is None:
            yield
            return
        self._samples += 1
        if self._samples == 1:
            self._left_s -= self._loop.time() - self._since
            self.close()
            if not self._timeout.expired():
                self._timeout.reschedule(None)
        try:
            yield
        finally:
            self._samples -= 1
            if not self._samples:
                self._go_on()

    def close(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        if self._left_s is None or self._timeout.expired():
            return
        self._since = self._loop.time()
        due = self._since + max(0.0, self._left_s)
        self._timer = self._loop.call_at(due, self._ring, due)
        self._timeout.reschedule(due + GRACE_S)

    def _ring(self, due: float) -> None:
        if self._loop.time() < (later := due + self._timeout.spared_at_limit()):
            self._timer = self._loop.call_at(later, self._ring, due)
        else:
            self._when_over()
