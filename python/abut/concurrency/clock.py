"""The time of one attempt, of which the model's own is none where it runs in this process."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from abut.concurrency.deadline import SparingTimeout

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
