"""Test a release file: a wheel, or the wheel that an sdist builds, in a clean environment.

    python scripts/release/test_dist.py dist/abut-0.2.0-….whl [--python 3.14]

The environment has the wheel, and the packages of all extras that constraints.txt pins, except
torch. All tests without torch run there; the others are skipped and listed. tests/test_packaging.py
is left out, because it builds wheels itself.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import check_dist
import environments as envs

# Platforms without wheels of a package of the tests: its tests are skipped there.
ABSENT = {"musl": ["duckdb"]}


def absent() -> list[str]:
    """Return the packages that cannot be installed on this system."""
    is_musl = any(Path("/lib").glob("ld-musl-*"))
    return ABSENT["musl"] if is_musl else []


def wheel_of(sdist: Path, folder: Path, python: str) -> Path:
    """Build the wheel of an sdist with its own backend, and check it like a released wheel."""
    pinned = ["--build-constraints", envs.CONSTRAINTS]
    envs.uv("build", "--quiet", "--wheel", "--python", python, *pinned, "--out-dir", folder, sdist)
    (built,) = folder.glob("*.whl")
    if faults := check_dist.wheel_faults(built):
        sys.exit("\n".join(f"the wheel of {sdist.name}: {fault}" for fault in faults))
    return built


def test(dist: Path, python: str, folder: Path, arguments: list[str]) -> int:
    """Install and test, and return the exit status of pytest."""
    wheel = wheel_of(dist, folder / "wheel", python) if dist.suffix == ".gz" else dist
    here = envs.make(folder / "environment", python)
    overrides = folder / "overrides.txt"
    overrides.write_text("".join(f"{name}; sys_platform == 'never'\n" for name in absent()))
    install = ["pip", "install", "--quiet", "--python", here, "--only-binary", ":all:"]
    install += ["--overrides", overrides, "--constraint", envs.CONSTRAINTS]
    envs.uv(*install, f"{wheel}[{','.join(envs.light_extras())}]")
    envs.check_installed(here)
    return envs.pytest(here, "--ignore=tests/test_packaging.py", *arguments)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dist", type=Path, help="a wheel or an sdist")
    parser.add_argument("--python", default=sys.executable, help="a version or a path")
    parser.add_argument("--pytest", action="append", default=[], help="an argument for pytest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dist = options.dist.resolve()
        sys.exit(test(dist, options.python, Path(folder), options.pytest))


if __name__ == "__main__":
    main()
