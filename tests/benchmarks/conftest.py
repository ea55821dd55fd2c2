"""The benchmarks' processes start without importing transformers and TRL again."""

import pytest

from benchmarks import own_process
from tests.kit.forks import python


@pytest.fixture(autouse=True)
def starts_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_process, "PYTHON", python())
