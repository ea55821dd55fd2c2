"""CPU time and memory of a process and all its descendants, from Linux's `/proc`."""

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
# Fields of `/proc/PID/stat` after the name in parentheses; the state is field 0.
_PARENT, _USER_TICKS, _SYSTEM_TICKS = 1, 11, 12


def is_known() -> bool:
    """Return whether this system has these figures."""
    return (_PROC / "self" / "smaps_rollup").is_file()


def processor_s(root: int | None = None) -> float:
    """Return the CPU seconds that the tree's running processes have taken so far.

    Args:
        root: the process id of the tree's root; None: this process.
    """
    ticks = sum(int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS]) for _, stat in _tree(root))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_bytes(root: int | None = None) -> int:
    """Return the memory of the tree; memory shared by several processes counts once (`Pss`)."""
    return sum(_pss(pid) for pid, _ in _tree(root))


def _tree(root: int | None) -> Iterator[tuple[int, list[str]]]:
    """Yield the root and its descendants, each with the fields of its `stat`."""
    stats: dict[int, list[str]] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            stats[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(int(stat[_PARENT]), []).append(pid)
    left = [pid for pid in [os.getpid() if root is None else root] if pid in stats]
    while left:
        pid = left.pop()
        yield pid, stats[pid]
        left += children.get(pid, [])


def _pss(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    found = [line.split()[1] for line in lines if line.startswith("Pss:")]
    return int(found[0]) * 1024 if found else 0  # a zombie has none
