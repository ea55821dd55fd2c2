"""Processes of the benchmarks start without the time that importing TRL takes."""

import pytest

from benchmarks import own_process
from tests.kit.forks import python


@pytest.fixture(autouse=True)
def starts_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def command_of(module: str, *arguments: str) -> list[str]:
        return python("-m", f"benchmarks.{module}", *arguments)

    monkeypatch.setattr(own_process, "command_of", command_of)
