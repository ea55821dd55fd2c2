"""The Rust version of the release. As a script, install it with rustup, and print it.

The version is `release-rust` in Cargo.toml; wheels and CI use it.
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
    """Return the workspace table of Cargo.toml."""
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    found: dict[str, Any] = cargo["workspace"]
    return found


def version() -> str:
    """Return the version of abut, which only Cargo.toml defines."""
    return str(workspace()["package"]["version"])


def release_rust() -> str:
    """Return the Rust version that builds the wheels."""
    return str(workspace()["metadata"]["release-rust"])


def oldest_rust() -> str:
    """Return the oldest Rust version that builds and passes the tests, as in CONTRIBUTING.md."""
    return str(workspace()["package"]["rust-version"])


def targets() -> list[str]:
    """Return the platforms of the release's wheels, by Rust's names."""
    return sorted(set(re.findall(r"\btarget: ([\w-]+)", RELEASE.read_text(encoding="utf-8"))))


def host() -> str:
    """Return this platform, by Rust's name."""
    done = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True)
    found = re.search(r"^host: (.*)$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    return found[1]


def install(wanted: str, *, target: str | None = None, components: str = "") -> None:
    """Install a toolchain and its standard library for `target` with rustup, if missing."""
    # Check first, so that an installed toolchain does not need the network.
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
    """Run the command line."""
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
