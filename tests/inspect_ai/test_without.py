"""Where Inspect is not installed or too old, and what importing abut takes of it: nothing."""

import importlib.metadata
import importlib.util
import subprocess
import sys

import pytest

import abut
from abut.inspect_ai import inspect_task


def test_importing_the_room_imports_nothing_of_the_package() -> None:
    code = (
        "import sys, abut.inspect_ai\n"
        "print([n for n in ('inspect_ai', 'aiohttp', 'openai', 'datasets') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "inspect_ai" else found(name)
    )
    with pytest.raises(abut.errors.MissingExtraError) as raised:
        inspect_task("file.py@mine")
    assert str(raised.value) == ("abut.inspect_ai needs inspect_ai: pip install 'abut[inspect_ai]'")


@pytest.mark.parametrize("version", ["0.3.249", "0.3.276", "0.3.276.dev3", "0.2.400"])
def test_a_version_that_is_too_old_is_an_error(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(abut.errors.MissingExtraError) as raised:
        inspect_task("file.py@mine")
    assert str(raised.value) == (
        f"abut.inspect_ai needs inspect-ai 0.3.277 or later, and {version} is installed: "
        "pip install 'abut[inspect_ai]'"
    )
