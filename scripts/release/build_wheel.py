"""Build the wheel of one platform, as the release does.

    python scripts/release/build_wheel.py [x86_64-unknown-linux-musl] [--out dist]

The default platform is this machine's. Needs the tools in scripts/release/tools.txt, and rustup.
Zig links the wheels for Linux, and contains the oldest C library that a wheel supports, so any
Linux can build all of them without containers. maturin fails if a wheel would need more than its
tag promises.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import rust

ROOT = Path(__file__).resolve().parents[2]
# The platform tags of wheels. On macOS, maturin uses 10.12 and 11.0.
COMPATIBILITY = {"gnu": "manylinux_2_28", "musl": "musllinux_1_2"}


def build(target: str, out: Path) -> None:
    """Build the wheel of a target into a folder."""
    version = rust.release_rust()
    rust.install(version, target=target)
    command = ["maturin", "build", "--release", "--locked", "--target", target, "--out", str(out)]
    _, _, libc = target.partition("-unknown-linux-")
    if libc:
        command += ["--zig", "--compatibility", COMPATIBILITY[libc], "--auditwheel", "check"]
    scripts = sysconfig.get_path("scripts")
    environment = os.environ | {
        "RUSTUP_TOOLCHAIN": version,
        "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
    }
    sys.exit(subprocess.call(command, cwd=ROOT, env=environment))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", nargs="?", help="as Rust names it (default: this platform)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    options = parser.parse_args()
    build(options.target or rust.host(), options.out.resolve())


if __name__ == "__main__":
    main()
