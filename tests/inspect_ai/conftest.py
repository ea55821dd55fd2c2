"""Inspect itself: `make test-inspect`. Elsewhere these tests are skipped, and say so."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
WITHOUT_THE_PACKAGE = ("test_without.py",)

# Nothing of Inspect's is written outside of a test's folder, and nothing asks the network.
os.environ.setdefault("INSPECT_DISPLAY", "none")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    has_package = importlib.util.find_spec("inspect_ai") is not None
    for item in items:
        if HERE not in item.path.parents or item.path.name in WITHOUT_THE_PACKAGE:
            continue
        item.add_marker(pytest.mark.inspect_ai)
        if not has_package:
            item.add_marker(pytest.mark.skip(reason="no inspect_ai: make test-inspect"))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The folder of logs."""
    return tmp_path / "logs"
