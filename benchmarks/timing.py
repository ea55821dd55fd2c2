"""Timing: all sides take turns, round by round, so that a disturbance affects all of them.

`prepare` makes the work of each round outside the timing: if it makes a new text each time, caches
do not help.
"""

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Sides: TypeAlias = Mapping[str, Callable[[], Any]]
Check: TypeAlias = Callable[[dict[str, Any]], None]
Prepare: TypeAlias = Callable[[int], tuple[Sides, Check]]


def interleave(
    prepare: Prepare, rounds: int, *, twin: Prepare | None = None, collect: bool = False
) -> dict[str, list[float]]:
    """Return the seconds of each side, one for each round that it ran in.

    Args:
        prepare: makes the sides of a round and the check of their results. Round -1 is the
            warm-up; its times are discarded.
        rounds: the number of timed rounds.
        twin: makes the same sides for other work. Each is called untimed directly before the timed
            one, for calls so short that the previous side's use of the caches would dominate
            their time.
        collect: keep Python's garbage collector on, for work that makes garbage by design.
    """
    seconds: dict[str, list[float]] = {}
    for number in range(-1, rounds):
        sides, check = prepare(number)
        others, check_others = twin(number) if twin else ({}, None)
        results: dict[str, Any] = {}
        of_others: dict[str, Any] = {}
        for name, side in sides.items():
            if name in others:
                of_others[name] = others[name]()
            if not collect:
                gc.disable()
            try:
                began = time.perf_counter()
                results[name] = side()
                taken = time.perf_counter() - began
            finally:
                gc.enable()
            if number >= 0:
                seconds.setdefault(name, []).append(taken)
        check(results)
        if check_others is not None:
            check_others(of_others)
    return seconds


def all_rounds(sides: Sequence[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """Join the seconds of several calls of `interleave` by side."""
    joined: dict[str, list[float]] = {}
    for taken in sides:
        for name, values in taken.items():
            joined.setdefault(name, []).extend(values)
    return joined


def available_cores() -> frozenset[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def stay_on_one_core() -> int | None:
    """Pin this process to the last core that it may use; return None if the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables that keep every side on one thread; libraries read them when they load."""
ALL_THREADS = {"RAYON_NUM_THREADS": "0", "TOKENIZERS_PARALLELISM": "true"}
"""Environment variables for work on many texts: one thread per core."""
