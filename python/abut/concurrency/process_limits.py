"""The limits of a process that plays thousands of rollouts: its threads, and its garbage collector.

Python's collector looks for cycles whenever 700 more containers were made than freed, and treats
objects that survive two collections as old. Thousands of rollouts create tasks, futures and frames
in waves larger than 700. The collector traverses them again and again, soon treats them as old, and
then traverses the whole heap. With 2,048 asynchronous rollouts at once, collections took two fifths
of the CPU time of the rollouts.
"""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


class ThreadLimit(NamedTuple):
    """The lowest limit that applies to a process."""

    threads: int
    name: str
    """The setting that imposes the limit, by the name that an administrator searches for."""


def thread_limit(root: Path = Path("/")) -> ThreadLimit | None:
    """Return the lowest limit of threads for this process; None if the system has no limit.

    Linux: https://man7.org/linux/man-pages/man2/clone.2.html, EAGAIN; cgroups:
    https://docs.kernel.org/admin-guide/cgroup-v2.html, `pids.max`.

    Args:
        root: the folder that has `proc` and `sys`.
    """
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[ThreadLimit]:
    # The superuser is not held to this one.
    if resource is not None and hasattr(resource, "RLIMIT_NPROC") and os.geteuid():
        processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        if processes != resource.RLIM_INFINITY:
            yield ThreadLimit(processes, "ulimit -u")
    # The stack of a thread and the page that guards it are two mappings.
    for name, share in (("kernel.threads-max", 1), ("kernel.pid_max", 1), ("vm.max_map_count", 2)):
        if (most := _number(root / "proc/sys" / name.replace(".", "/"))) is not None:
            yield ThreadLimit(most // share, name)
    for folder in _control_groups(root):
        if (most := _number(folder / "pids.max")) is not None:
            yield ThreadLimit(most, f"pids.max of the cgroup {folder}")


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the cgroups of this process, in either version, and all of their ancestors."""
    groups = [(root / "sys/fs/cgroup", "/"), (root / "sys/fs/cgroup/pids", "/")]
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:
                groups.append((root / "sys/fs/cgroup", path))
            elif "pids" in kinds.split(","):
                groups.append((root / "sys/fs/cgroup/pids", path))
    for top, path in groups:
        folder = top / path.strip("/")
        while folder != top.parent:
            yield folder
            folder = folder.parent


def _number(file: Path) -> int | None:
    """Return the number in a file of the kernel; None for `max`, and if there is no such file."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None


# An asynchronous rollout holds so many containers besides its turns, rounded up.
_CONTAINERS_OF_A_ROLLOUT = 64


@contextmanager
def rarer_collections(rollouts: int) -> Iterator[None]:
    """Make garbage collections rarer, to fit the number of rollouts in flight.

    The process has one collector, so this applies to the whole process, until the last `with` has
    ended. A collector that is disabled, or has a higher threshold, is not changed.
    """
    containers = _CONTAINERS_OF_A_ROLLOUT * rollouts
    _THRESHOLD.change(lambda wanted: wanted.append(containers))
    try:
        yield
    finally:
        _THRESHOLD.change(lambda wanted: wanted.remove(containers))


class _Threshold:
    """The threshold of the youngest generation: the highest requested one, or the user's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[int] = []
        self._before = self._ours = gc.get_threshold()[0]

    def change(self, change: Callable[[list[int]], None]) -> None:
        """Change the list of requested thresholds, and set the collector's threshold."""
        with self._lock:
            change(self._wanted)
            now, *older = gc.get_threshold()
            if now != self._ours:  # other code has set it since
                self._before = now
            # 0: the collector is disabled.
            self._ours = max([self._before, *self._wanted]) if self._before else 0
            if now != self._ours:
                gc.set_threshold(self._ours, *older)


_THRESHOLD = _Threshold()
