"""Rust as the release has it: run, this has rustup install it, and says which it is.

One place has the version, `release-rust` in Cargo.toml; wheels are built and CI is run with it.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / ".github" / "workflows" / "release.yml"


def workspace() -> dict[str, Any]:
    """What Cargo.toml says of the workspace."""
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    found: dict[str, Any] = cargo["workspace"]
    return found


def version() -> str:
    """The version of abut, which stands there alone."""
    return str(workspace()["package"]["version"])


def release_rust() -> str:
    """The version of Rust that builds the wheels."""
    return str(workspace()["metadata"]["release-rust"])


def oldest_rust() -> str:
    """The oldest version that builds and tests: what CONTRIBUTING.md promises."""
    return str(workspace()["package"]["rust-version"])


def targets() -> list[str]:
    """The platforms that the release builds wheels for, as Rust names them."""
    return sorted(set(re.findall(r"\btarget: ([\w-]+)", RELEASE.read_text(encoding="utf-8"))))


def host() -> str:
    """This platform, as Rust names it."""
    done = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True)
    found = re.search(r"^host: (.*)$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    return found[1]


def install(wanted: str, *, target: str | None = None, components: str = "") -> None:
    """Have rustup fetch a toolchain, where it or its standard library for `target` is not there."""
    # Asked first: what is there needs no network.
    query = ["rustup", "target", "list", "--installed", "--toolchain", wanted]
    done = subprocess.run(query, capture_output=True, text=True)
    is_there = done.returncode == 0 and (target is None or target in done.stdout.split())
    if is_there and not components:
        return
    command = ["rustup", "toolchain", "install", wanted, "--profile=minimal", "--no-self-update"]
    command += [f"--target={target}"] if target else []
    command += [f"--component={components}"] if components else []
    subprocess.run(command, stdout=sys.stderr, check=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--components", default="", help="such as clippy,rustfmt")
    parser.add_argument("--oldest", action="store_true", help="the oldest that is promised instead")
    parser.add_argument("--default", action="store_true", help="make it the default, too")
    options = parser.parse_args()
    wanted = oldest_rust() if options.oldest else release_rust()
    install(wanted, components=options.components)
    if options.default:
        subprocess.run(["rustup", "default", wanted], check=True)
    sys.stdout.write(f"{wanted}\n")


if __name__ == "__main__":
    main()
