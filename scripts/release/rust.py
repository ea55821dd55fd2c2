"""Rust as the release has it: run, this installs it and makes it the default.

One place has the version, `release-rust` in Cargo.toml; wheels are built and CI is run with it.
"""

import argparse
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def release_rust() -> str:
    """The version of Rust that builds the wheels."""
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    version: str = cargo["workspace"]["metadata"]["release-rust"]
    return version


def oldest_rust() -> str:
    """The oldest version that builds and tests: what CONTRIBUTING.md promises."""
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    version: str = cargo["workspace"]["package"]["rust-version"]
    return version


def install(version: str, *, target: str | None = None, components: str = "") -> None:
    """Have rustup fetch a toolchain, where it or its standard library for `target` is not there."""
    query = ["rustup", "target", "list", "--installed", "--toolchain", version]
    done = subprocess.run(query, capture_output=True, text=True)
    if done.returncode == 0 and not components and (target or "") in ["", *done.stdout.split()]:
        return
    command = ["rustup", "toolchain", "install", version, "--profile=minimal", "--no-self-update"]
    command += [f"--target={target}"] if target else []
    command += [f"--component={components}"] if components else []
    subprocess.run(command, check=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--components", default="", help="such as clippy,rustfmt")
    parser.add_argument("--oldest", action="store_true", help="the oldest that is promised instead")
    options = parser.parse_args()
    version = oldest_rust() if options.oldest else release_rust()
    install(version, components=options.components)
    subprocess.run(["rustup", "default", version], check=True)


if __name__ == "__main__":
    main()
