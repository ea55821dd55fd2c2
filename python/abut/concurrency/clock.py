"""Time limits that stand still while others are to blame, and the waits between retries.

Invariant: a limit is reached only once its seconds have passed on the clock of the rollout that it
bounds: pauses, and time for which others are to blame, do not count. A cancellation from outside is
never taken for the limit's own.
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
    """A limit of one task, and the one timer of the loop behind it.

    The timer is set again only if the next limit comes before it. A timer that goes off too early
    is set anew. `asyncio.timeout` sets and cancels one for each wait, which cost a sixth of what
    the engine does in a turn.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        """When the limit is reached, by the loop's clock; None: it stands still."""
        self._spared: Callable[[], float] = _nothing
        self._expired = False
        self._cancelling = 0

    def close(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, seconds: float, spared: Callable[[], float]) -> None:
        self._task = asyncio.current_task()
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
        """Return whether the task's CancelledError is this limit's, and nobody else's as well."""
        assert self._task is not None
        return self._expired and self._task.uncancel() <= self._cancelling


class Deadline(_Limit):
    """Bounds one wait after the other, for the task that makes it."""

    async def keep(
        self, awaitable: Awaitable[T], seconds: float, *, spared: Callable[[], float] | None = None
    ) -> T:
        """Wait for it so long.

        Args:
            awaitable: is awaited.
            seconds: the limit.
            spared: how many seconds of the wait do not count; asked when the limit is reached.

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
    """Bounds the code inside `async with`, as `asyncio.timeout` does, on a clock that can pause.

    Args:
        seconds: the limit.
        spared: how many seconds of it do not count so far; asked when the limit is reached.
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
        """Call this when the limit is reached, and end the code inside so many seconds later."""
        self._when_over = call, grace_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still as long as anybody is in here."""
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
    """Yield the seconds to wait after each failure in a row; begin another one after a success.

    They double up to `longest_s`. The first wait is the price of a trouble that passes at once, so
    it is short beside a turn: 0.05 s for a vLLM server that is paused while it gets weights, 0.1 s
    for one that fails and for an OpenEnv server without a free session. The longest is how late the
    end of a trouble is noticed: 2 s for what lasts seconds, a pause or a session; 5 s for a vLLM
    server that fails, since it takes minutes to start again. There is no jitter, because only the
    few ranks of one training ask.
    """
    wait_s = first_s
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, longest_s)


def _nothing() -> float:
    return 0.0
