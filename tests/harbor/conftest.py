"""Harbor itself: `make test-harbor`. Elsewhere these tests are skipped, and say so."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
LOCAL = "tests.harbor.local_environment:LocalEnvironment"
OWN = "tests.harbor.own_agents"
WITHOUT_THE_PACKAGE = ("test_without.py",)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if HERE not in item.path.parents or item.path.name in WITHOUT_THE_PACKAGE:
            continue
        item.add_marker(pytest.mark.harbor)
        if find_spec("harbor") is None:
            item.add_marker(pytest.mark.skip(reason="no harbor: make test-harbor"))
        elif sys.platform != "linux" or os.getuid() != 0:
            item.add_marker(pytest.mark.skip(reason="trials without Docker need Linux, and root"))


@pytest.fixture(scope="session", autouse=True)
def mount_points() -> Iterator[None]:
    """The folders that trials are mounted over; those that were not there before go."""
    if find_spec("harbor") is None or sys.platform != "linux":
        yield
        return
    from tests.harbor.local_environment import FOLDERS

    new = [path for name in FOLDERS if not (path := Path("/", name)).exists()]
    yield
    for path in new:
        with suppress(OSError):  # somebody uses it, or there was none
            path.rmdir()
