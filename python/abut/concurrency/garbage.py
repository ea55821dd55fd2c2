"""Python's garbage collector while many rollouts are in flight.

It looks for cycles whenever 700 more containers were made than freed, and what it meets twice it
takes for old. What thousands of rollouts wait for, tasks, futures and frames, comes and goes in
waves larger than that: it is looked through again and again, and soon taken for old, whereupon the
whole heap is looked through. Of asynchronous rollouts, 2,048 at once, that was two fifths of all
that they cost.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What an asynchronous one holds besides its turns, rounded up.
_CONTAINERS_OF_A_ROLLOUT = 64


@contextmanager
def rarer_collections(rollouts: int) -> Iterator[None]:
    """Collect garbage only as often as so many rollouts in flight need it.

    For all of the process, which has one collector, until the last who asked has left. One that is
    disabled, or has a higher threshold, stays as it is.
    """
    containers = _CONTAINERS_OF_A_ROLLOUT * rollouts
    _THRESHOLD.change(lambda wanted: wanted.append(containers))
    try:
        yield
    finally:
        _THRESHOLD.change(lambda wanted: wanted.remove(containers))


class _Threshold:
    """That of the youngest generation: the highest that anybody wants, or what it was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[int] = []
        self._before = self._ours = gc.get_threshold()[0]

    def change(self, change: Callable[[list[int]], None]) -> None:
        """Set it for what is wanted from now on."""
        with self._lock:
            change(self._wanted)
            now, *older = gc.get_threshold()
            if now != self._ours:  # somebody else has set it since
                self._before = now
            # 0: the collector is disabled.
            self._ours = max([self._before, *self._wanted]) if self._before else 0
            if now != self._ours:
                gc.set_threshold(self._ours, *older)


_THRESHOLD = _Threshold()
