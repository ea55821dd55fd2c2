"""The lowest of the limits that a system has for threads, and what it is called."""

import os
from pathlib import Path
from typing import Any

import pytest

from abut.concurrency.process_limits import thread_limit

pytestmark = pytest.mark.skipif(os.name == "nt", reason="proc and sys are Linux's")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: Any) -> Any:
    """Writes the files of a system; `ulimit -u` says nothing."""
    monkeypatch.setattr("os.geteuid", lambda: 0)

    def write(**files: str) -> Path:
        for name, text in files.items():
            file = tmp_path / name.replace("__", "/").replace("pids_max", "pids.max")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write


def test_the_kernel_has_several(system: Any) -> None:
    root = system(proc__sys__kernel__pid_max="32768\n", proc__sys__vm__max_map_count="65530\n")
    assert thread_limit(root) == (32765, "vm.max_map_count")
    assert thread_limit(system(proc__sys__kernel__pid_max="4194304\n")) == thread_limit(root)


def test_nothing_is_known_of_a_system_without_these_files(tmp_path: Path, system: Any) -> None:
    assert thread_limit(tmp_path) is None


@pytest.mark.parametrize(
    ("line", "group"),
    [("0::/pod/box", "sys__fs__cgroup__pod"), ("8:pids:/pod/box", "sys__fs__cgroup__pids__pod")],
    ids=["version 2", "version 1"],
)
def test_a_control_group_holds_those_in_it(system: Any, line: str, group: str) -> None:
    files = {
        "proc__self__cgroup": f"4:memory:/other\n{line}\n",
        "proc__sys__kernel__threads-max": "192686\n",
        f"{group}__pids_max": "512\n",
        f"{group}__box__pids_max": "max\n",
    }
    root = system(**files)
    folder = root / group.replace("__", "/")
    assert thread_limit(root) == (512, f"pids.max of the cgroup {folder}")


def test_a_user_may_have_so_many_processes(system: Any, monkeypatch: Any) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    assert thread_limit(system()) == (256, "ulimit -u")
