"""How the time of a function grows with its input: linear is told from quadratic on any machine.

Invariant: no limit is in seconds. Two sizes are compared in the processor time of one thread; the
shortest time of each counts, since other work on the machine only adds to it, and what is measured
too long is measured again. What is not linear stays so, however often it is measured.
"""

import gc
import time
from collections.abc import Callable

TIMES = 8
"""So many times as much input is compared with."""
LIMIT = 24
"""Times as long: linear is 8, quadratic is 64."""
ROUNDS = 12


def is_linear(work: Callable[[int], object], count: int) -> bool:
    """Whether `TIMES` times the input takes less than `LIMIT` times as long as `work(count)`."""
    few = many = float("inf")
    for _ in range(ROUNDS):
        few = min(few, _seconds(work, count))
        many = min(many, _seconds(work, count * TIMES))
        if many < LIMIT * few:
            return True
    return False


def _seconds(work: Callable[[int], object], count: int) -> float:
    # A collection looks at all objects of the process, and comes where there are many new ones.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        began = time.thread_time()
        work(count)
        return time.thread_time() - began
    finally:
        if is_collecting:
            gc.enable()
