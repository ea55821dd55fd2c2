"""How many threads a process may have, where its system says so."""

import os
from collections.abc import Iterator
from contextlib import suppress
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
    """What sets it, as an administrator looks for it."""


def thread_limit(root: Path = Path("/")) -> ThreadLimit | None:
    """The limit of this process; None where nothing tells of one.

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
            yield ThreadLimit(most, f"pids.max of the control group {folder}")


def _control_groups(root: Path) -> Iterator[Path]:
    """That of this process in either version, and all above it, which hold it as well."""
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
    """What a file of the kernel says; None for `max`, and where there is no such file."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None
