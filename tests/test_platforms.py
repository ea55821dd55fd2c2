"""Where abut runs, and what it says where something cannot work."""

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

import abut
from abut.openenv import Docker, OpenEnv, Serve

ROOT = Path(__file__).parents[1]
SYSTEMS = {
    "ubuntu": "Operating System :: POSIX :: Linux",
    "macos": "Operating System :: MacOS",
    "windows": "Operating System :: Microsoft :: Windows",
}


def test_the_module_asks_for_the_gil() -> None:
    """A build for the stable ABI of 3.11 has no slot for it, so there only the source says it."""
    assert "\n#[pyo3::pymodule(gil_used = true)]\nmod _native " in (
        ROOT / "rust/py/src/lib.rs"
    ).read_text(encoding="utf-8")
    assert abut.__version__  # it is imported
    assert getattr(sys, "_is_gil_enabled", lambda: True)()


def test_the_classifiers_name_the_systems_that_wheels_are_built_and_tried_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {name for name in project["classifiers"] if name.startswith("Operating System")}
    release = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    wheels, _, tests = release.partition("\n  test:\n")
    for jobs in (wheels, tests):
        runners = set(re.findall(r"runner: (\w+)-", jobs))
        assert {SYSTEMS[runner] for runner in runners} == named


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("serve:apps:one", "serve:apps:one"),
        (Serve("apps:one", replicas=2), "serve:apps:one"),
        ("docker:image", "docker:image"),
        (Docker("image"), "docker:image"),
    ],
)
def test_without_process_groups_no_server_is_started(
    monkeypatch: pytest.MonkeyPatch, target: str | Serve | Docker, name: str
) -> None:
    monkeypatch.delattr(os, "killpg")  # as on Windows
    with pytest.raises(abut.errors.EnvError) as raised:
        OpenEnv(target)
    assert str(raised.value) == (
        f"{name} cannot be started here: this system has no process groups, so abut could not "
        "stop a server together with its own processes\nhint: start the server yourself, and "
        "pass its address: OpenEnv('http://127.0.0.1:8000')"
    )
    OpenEnv("http://127.0.0.1:8000").close()  # somebody else's is no matter
