"""Check a release as far as one machine can: `make release-check` builds dist/ and calls this.

The files in dist/ are audited and tested in clean environments, on three Python versions: the
oldest supported one, the newest available one, and one between. Then come changelog, licences and
workflows. All checks run, even if one fails.

Pythons are found on PATH, in pyenv and with uv, which downloads missing versions if it can. Pass
others by path: `make release-check PYTHONS="/opt/python3.14/bin/python3"`.
"""

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from environments import ROOT, project
from rust import release_rust, version

HERE = Path(__file__).resolve().parent
SCRIPTS = Path(sysconfig.get_path("scripts"))
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


@dataclass(frozen=True)
class Check:
    """A command, and the name of its check."""

    name: str
    command: tuple[str, ...]


def supported() -> list[str]:
    """Return the Python versions of the classifiers, oldest first."""
    named = (re.fullmatch(r".*:: (3\.\d+)", line) for line in project()["classifiers"])
    return sorted((found[1] for found in named if found), key=lambda name: int(name[2:]))


def version_of(python: str) -> str:
    """Return the version of an interpreter, such as 3.12; empty if it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def python_of(name: str, named: list[str]) -> str | None:
    """Return the path of an interpreter of a version: given, found, or downloaded by uv."""
    for path in named:
        if version_of(path) == name:
            return path
    find = [str(SCRIPTS / "uv"), "python", "find", "--no-project", name]
    for fetch in ("never", "automatic"):
        search = os.pathsep.join([os.environ["PATH"], *map(str, sorted(PYENV.glob("*/bin")))])
        environment = os.environ | {"UV_PYTHON_DOWNLOADS": fetch, "PATH": search}
        if fetch == "automatic":
            get = [str(SCRIPTS / "uv"), "python", "install", "--quiet", name]
            subprocess.run(get, env=environment, capture_output=True)
        done = subprocess.run(find, env=environment, capture_output=True, text=True)
        path = done.stdout.strip()
        if path and version_of(path) == name:
            return path
    return None


def three_pythons(named: list[str]) -> list[tuple[str, str]]:
    """Return the oldest version, the newest and one between, with their paths."""
    if broken := [path for path in named if version_of(path) not in supported()]:
        sys.exit(f"{', '.join(broken)}: no Python {', '.join(supported())}")
    every = [(name, python_of(name, named)) for name in supported()]
    found = [(name, path) for name, path in every if path is not None]
    missing = [name for name, path in every if path is None]
    if missing:
        sys.stderr.write(f"not on this machine, and uv cannot download it: {said_of(missing)}\n")
    if len(found) < 3 or found[0][0] != supported()[0]:
        have = ", ".join(name for name, _ in found) or "none"
        sys.exit(
            f"three Python versions are needed, including {supported()[0]}; found: {have}\n"
            f"hint: install {said_of(missing)} (pyenv install {missing[0]}, or a package of the "
            f"system), and name what is not on PATH: make release-check PYTHONS=/path/to/python"
        )
    return [found[0], found[len(found) // 2], found[-1]]


def said_of(names: list[str]) -> str:
    """Return versions as text."""
    return ", ".join(f"Python {name}" for name in names)


def checks(dist: Path, pythons: list[tuple[str, str]]) -> list[Check]:
    """Return all checks: the quick ones, then the tests on these Pythons, which take minutes."""

    def script(name: str, *words: str | Path) -> tuple[str, ...]:
        return (sys.executable, str(HERE / name), *map(str, words))

    wheels, sdists = sorted(dist.glob("*.whl")), sorted(dist.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        sys.exit(f"{dist} has {len(wheels)} wheels and {len(sdists)} sdists, not one of each")
    found = [
        Check("changelog, version, links", script("check_papers.py")),
        Check("licences", script("third_party_licenses.py", "--check")),
        Check("workflows", (str(SCRIPTS / "zizmor"), "--offline", "--quiet", ".github")),
        Check("wheel and sdist", script("check_dist.py", dist)),
    ]
    for name, path in pythons:
        words = script("test_dist.py", wheels[0], "--python", path)
        found.append(Check(f"tests of the wheel on Python {name}", words))
    for name, path in pythons[-1:]:
        words = script("test_dist.py", sdists[0], "--python", path, "--pytest=tests/core")
        found.append(Check(f"tests of the core of the sdist's wheel on Python {name}", words))
    return found


def run(check: Check) -> tuple[int, str, float]:
    """Run a check, then print all of its output; return its status, name and seconds."""
    sys.stderr.write(f"begins: {check.name}\n")
    began = time.monotonic()
    environment = os.environ | {"RUSTUP_TOOLCHAIN": release_rust()}
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(
            check.command, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT
        )
        said.seek(0)
        text = said.read().decode(errors="replace")
    sys.stdout.write(f"\n=== {check.name}\n{text}")
    sys.stdout.flush()
    return done.returncode, check.name, time.monotonic() - began


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--pythons", default="", help="paths of interpreters, besides those found")
    parser.add_argument("--jobs", type=int, default=1, help="so many checks at once (default: 1)")
    parser.add_argument("--no-tests", action="store_true", help="leave out what takes minutes")
    options = parser.parse_args()
    pythons = [] if options.no_tests else three_pythons(options.pythons.split())
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(run, checks(options.dist.resolve(), pythons)))
    sys.stdout.write(f"\nabut {version()}\n")
    for status, name, seconds in rows:
        sys.stdout.write(f"{'ok    ' if status == 0 else 'FAILED'} {name} ({seconds:.0f} s)\n")
    tried = {name for name, _ in pythons}
    if left := [name for name in supported() if name not in tried]:
        sys.stdout.write(f"not tried here: {said_of(left)}\n")
    sys.exit(any(status for status, _, _ in rows))


if __name__ == "__main__":
    main()
