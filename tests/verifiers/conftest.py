"""verifiers itself: `make test-verifiers`. Elsewhere these are skipped, and say so."""

import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# Tasksets are top-level modules, for verifiers and for the servers of tools that it starts.
TASKSETS = str(HERE / "tasksets")
sys.path.append(TASKSETS)


def _installed() -> tuple[int, ...]:
    try:
        version = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(int(part) for part in version.split(".")[:2])


def pytest_collection_modifyitems(items: list[Any]) -> None:
    installed = _installed()
    for item in items:
        if HERE not in item.path.parents or item.path.name == "test_without.py":
            continue
        item.add_marker(pytest.mark.verifiers)
        is_old = item.path.name.startswith("test_old_")
        if not installed or is_old != (installed < (0, 4)):
            wanted = "below 0.4" if is_old else "0.4"
            reason = f"no verifiers {wanted}: make test-verifiers"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where verifiers keeps its files, and where the servers of tools find their modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        path = os.pathsep.join([TASKSETS, os.environ.get("PYTHONPATH", "")])
        patch.setenv("PYTHONPATH", path)
        yield
