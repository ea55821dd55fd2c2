"""Where Inspect is not installed, and what importing abut takes of it: nothing."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

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


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """The versions that are said to be installed; None: it is not."""
    said: dict[str, str | None] = {}

    def version_of(package: str) -> str:
        found = said[package] if package in said else version(package)
        if found is None:
            raise PackageNotFoundError(package)
        return found

    monkeypatch.setattr("abut.extras.version", version_of)
    return said


def test_a_package_that_is_missing_is_named(installed: dict[str, str | None]) -> None:
    installed["inspect-ai"] = None
    with pytest.raises(abut.errors.MissingExtraError) as raised:
        inspect_task("file.py@mine")
    assert str(raised.value) == "abut.inspect_ai needs inspect-ai: pip install 'abut[inspect_ai]'"


@pytest.mark.parametrize("old", ["0.3.249", "0.3.276"])
def test_a_version_that_is_too_old_is_an_error(installed: dict[str, str | None], old: str) -> None:
    installed["inspect-ai"] = old
    with pytest.raises(abut.errors.MissingExtraError) as raised:
        inspect_task("file.py@mine")
    assert str(raised.value) == (
        f"abut.inspect_ai needs inspect-ai>=0.3.277, but {old} is installed\nhint: pip install "
        "'abut[inspect_ai]'"
    )


def test_a_grader_of_openai_needs_its_package_as_inspect_does(
    installed: dict[str, str | None],
) -> None:
    installed |= {"inspect-ai": "0.3.285", "openai": "2.54.0"}
    with pytest.raises(abut.errors.MissingExtraError) as raised:
        inspect_task("file.py@mine", model_roles={"grader": "openai/gpt-5"})
    assert str(raised.value) == (
        "openai/gpt-5, the grader of 'file.py@mine', needs openai>=3.4, but 2.54.0 is installed\n"
        "hint: pip install 'openai>=3.4'"
    )
