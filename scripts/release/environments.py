"""Environments in which wheels are tested: their packages, and uv, which creates them.

The packages come from pyproject.toml and constraints.txt; no extra is named here.
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
    """Return the project table of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found: dict = tomllib.loads(text)["project"]
    return found


def name_of(requirement: str) -> str:
    """Return the package name of a requirement, normalized like pip does."""
    found = NAME.match(requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def requirements(extras: list[str]) -> list[str]:
    """Return the requirements of the base install and some extras; extras can include extras."""
    declared = project()
    found = list(declared["dependencies"])
    for extra in extras:
        for requirement in declared["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{declared['name']}\[(.*)\]", requirement)
            found += requirements(own[1].split(",")) if own else [requirement]
    return list(dict.fromkeys(found))


def extras_here() -> list[str]:
    """Return the extras whose packages constraints.txt pins; others have separate environments."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pinned = {name_of(line) for line in lines if line and line[0] != "#"}
    extras = project()["optional-dependencies"]
    return [extra for extra in extras if {name_of(r) for r in requirements([extra])} <= pinned]


def needs_torch(extra: str) -> bool:
    """Return whether an extra installs torch, which few platforms have a build of."""
    return "torch" in {name_of(requirement) for requirement in requirements([extra])}


def light_extras() -> list[str]:
    """Return the extras that are installed with every tested wheel."""
    return [extra for extra in extras_here() if not needs_torch(extra)]


def uv(*words: str | Path) -> None:
    """Run uv, and exit if it fails."""
    command = [str(Path(sysconfig.get_path("scripts")) / "uv"), *map(str, words)]
    if subprocess.run(command, cwd=ROOT, env=clean_environment()).returncode != 0:
        sys.exit(f"failed: {' '.join(command)}")


def clean_environment() -> dict[str, str]:
    """Return the environment variables without those that make Python import other modules."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def make(folder: Path, python: str) -> Path:
    """Create an empty environment, and return its Python. `python` is a version or a path."""
    uv("venv", "--quiet", "--clear", "--python", python, folder)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def check_installed(python: Path) -> None:
    """Exit if Python there does not import the installed abut but the checkout."""
    probe = "import abut, sys; sys.exit(not abut.__file__.startswith(sys.prefix))"
    done = subprocess.run([python, "-c", probe], cwd=python.parent, env=clean_environment())
    if done.returncode != 0:
        sys.exit(f"{python} does not import the abut that was installed there")


def pytest(python: Path, *arguments: str) -> int:
    """Run tests there, and return the exit status. Skipped tests are listed with their reasons."""
    command = [str(python), "-m", "pytest", "-rs", "-p", "no:cacheprovider", *arguments]
    environment = clean_environment() | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment).returncode
