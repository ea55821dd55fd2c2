"""One version of TRL, in an environment of its own: `make test-trl-matrix`."""

import os
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[Any]) -> None:
    missing = pytest.mark.skip(reason="no environment of the TRL matrix: make test-trl-matrix")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.trl_matrix)
            # Old releases among themselves: what they warn of is not ours to mend.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            if "ABUT_TRL_VERSION" not in os.environ:
                item.add_marker(missing)
