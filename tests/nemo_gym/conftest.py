"""Real servers of NeMo Gym: `make test-nemo-gym`. Elsewhere their tests are skipped, and say so."""

import os
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("nemo_gym") is not None:
            item.add_marker(pytest.mark.slow)
            if not os.environ.get("ABUT_NEMO_GYM"):
                reason = "ABUT_NEMO_GYM is unset: make test-nemo-gym"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def runs() -> Path:
    """The folder of recorded rollouts."""
    named = os.environ.get("ABUT_NEMO_GYM_RUNS")
    if not named:
        pytest.skip("ABUT_NEMO_GYM_RUNS is unset: it names a folder of recorded rollouts")
    return Path(named)
