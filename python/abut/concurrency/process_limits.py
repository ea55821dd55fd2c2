"""The limits of a process that plays thousands of rollouts: its threads, and its garbage collector.

Python's collector looks for cycles whenever 700 more containers were made than freed, and takes
what it meets twice for old. Thousands of rollouts wait for tasks, futures and frames, which come
and go in waves larger than 700. The collector traverses them again and again, soon takes them for
old, and then traverses the whole heap. With 2,048 asynchronous rollouts at once, collections took
two fifths of all that the rollouts cost.
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
    """The lowest limit that holds for a process."""

    threads: int
    name: str
    """The setting behind the limit, as an administrator looks for it."""


def thread_limit(root: Path = Path("/")) -> ThreadLimit | None:
    """Return the lowest limit of threads for this process; None if the system names none.

    Linux: https://man7.org/linux/man-pages/man2/clone.2.html, EAGAIN; control groups:
    https://docs.kernel.org/admin-guide/cgroup-v2.html, `pids.max`.

    Args:
        root: where `proc` and `sys` are.
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
    """Yield the control groups of this process, in either version, and all above them."""
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
    """Collect garbage only as often as so many rollouts in flight need it.

    The process has one collector, so this holds for all of it, until the last `with` has ended. A
    collector that is disabled, or has a higher threshold, stays as it is.
    """
    containers = _CONTAINERS_OF_A_ROLLOUT * rollouts
    _THRESHOLD.change(lambda wanted: wanted.append(containers))
    try:
        yield
    finally:
        _THRESHOLD.change(lambda wanted: wanted.remove(containers))


class _Threshold:
    """The threshold of the youngest generation: the highest that anybody wants, or the user's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[int] = []
        self._before = self._ours = gc.get_threshold()[0]

    def change(self, change: Callable[[list[int]], None]) -> None:
        """Change the list of wanted thresholds, and set the collector's."""
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
