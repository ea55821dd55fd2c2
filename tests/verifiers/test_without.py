"""Where verifiers is not installed, and what importing abut takes of it: nothing."""

import importlib.metadata
import subprocess
import sys
from typing import Any

import pytest

import abut
from abut.verifiers import verifiers_env


def test_importing_the_room_imports_nothing_of_the_package() -> None:
    code = (
        "import sys, abut.verifiers\n"
        "print([n for n in ('verifiers', 'openai', 'mcp', 'datasets') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr("abut.extras.version", version)
    with pytest.raises(abut.errors.MissingExtraError) as raised:
        verifiers_env("gsm8k")
    assert str(raised.value) == "abut.verifiers needs verifiers: pip install 'abut[verifiers]'"
