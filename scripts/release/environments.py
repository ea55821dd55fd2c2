"""Environments in which a wheel is tested: which packages they have, and uv, which makes them.

What is tested follows pyproject.toml and constraints.txt; nothing here names an extra.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
NAME = re.compile(r"[A-Za-z0-9._-]+")


def project() -> dict:
    """What pyproject.toml says of the project."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found: dict = tomllib.loads(text)["project"]
    return found


def name_of(requirement: str) -> str:
    """The name of a requirement's package, as pip compares names."""
    found = NAME.match(requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def requirements(extras: list[str]) -> list[str]:
    """What the base install and some extras need; an extra may name others of its own."""
    declared = project()
    found = list(declared["dependencies"])
    for extra in extras:
        for requirement in declared["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{declared['name']}\[(.*)\]", requirement)
            found += requirements(own[1].split(",")) if own else [requirement]
    return list(dict.fromkeys(found))


def extras_here() -> list[str]:
    """The extras whose packages constraints.txt pins: the others have environments of their own."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pinned = {name_of(line) for line in lines if line and line[0] != "#"}
    extras = project()["optional-dependencies"]
    return [extra for extra in extras if {name_of(r) for r in requirements([extra])} <= pinned]


def needs_torch(extra: str) -> bool:
    """Whether an extra brings torch, for which few platforms have a build."""
    return "torch" in {name_of(requirement) for requirement in requirements([extra])}


def light_extras() -> list[str]:
    """The extras that are installed with every wheel that is tested."""
    return [extra for extra in extras_here() if not needs_torch(extra)]


def uv(*words: str | Path) -> None:
    """Run uv, and end where it fails."""
    command = [str(Path(sysconfig.get_path("scripts")) / "uv"), *map(str, words)]
    if subprocess.run(command, cwd=ROOT, env=clean_environment()).returncode != 0:
        sys.exit(f"failed: {' '.join(command)}")


def clean_environment() -> dict[str, str]:
    """The environment without what points Python to other modules than those of an environment."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def make(folder: Path, python: str) -> Path:
    """Make an empty environment; returns its Python. `python` is a version or a path."""
    uv("venv", "--quiet", "--clear", "--python", python, folder)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def check_installed(python: Path) -> None:
    """End unless it is the installed abut that is imported there, and not the checkout."""
    probe = "import abut, sys; sys.exit(not abut.__file__.startswith(sys.prefix))"
    done = subprocess.run([python, "-c", probe], cwd=python.parent, env=clean_environment())
    if done.returncode != 0:
        sys.exit(f"{python} does not import the abut that was installed there")


def pytest(python: Path, *arguments: str) -> int:
    """Run tests there; returns the exit status. Skipped tests are listed with their reasons."""
    command = [str(python), "-m", "pytest", "-rs", "-p", "no:cacheprovider", *arguments]
    environment = clean_environment() | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment).returncode
