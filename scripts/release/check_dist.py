"""Check the files that are to be published, without installing them.

    python scripts/release/check_dist.py dist

There must be one sdist, and one wheel for each platform, with the version in Cargo.toml. They must
be complete, for the stable ABI of Python 3.11 and later, with a description that the package index
can show, with the licences, and with a bill of materials that THIRD-PARTY-LICENSES covers.
"""

import argparse
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from rust import targets, version

ROOT = Path(__file__).resolve().parents[2]
LICENCES = ("LICENSE", "THIRD-PARTY-LICENSES")
# The beginning and end of a wheel's tag, by Rust's name of the platform.
TAGS = {
    "x86_64-unknown-linux-gnu": "manylinux_2_28_x86_64",
    "aarch64-unknown-linux-gnu": "manylinux_2_28_aarch64",
    "x86_64-unknown-linux-musl": "musllinux_1_2_x86_64",
    "aarch64-unknown-linux-musl": "musllinux_1_2_aarch64",
    "x86_64-apple-darwin": "macosx_10_12_x86_64",
    "aarch64-apple-darwin": "macosx_11_0_arm64",
    "x86_64-pc-windows-msvc": "win_amd64",
}


def expected_wheels() -> set[str]:
    """Return the names of the wheels of all platforms."""
    return {f"abut-{version()}-cp311-abi3-{TAGS[target]}.whl" for target in targets()}


def package_files() -> set[str]:
    """Return the tracked files of the package, with their paths in a wheel."""
    done = subprocess.run(
        ["git", "ls-files", "python"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return {line.removeprefix("python/") for line in done.stdout.splitlines()}


def wheel_faults(wheel: Path) -> list[str]:
    """Return the faults of a wheel."""
    faults = []
    folder = f"abut-{version()}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        for name in LICENCES:
            inside = f"{folder}/licenses/{name}"
            if inside not in names or archive.read(inside) != (ROOT / name).read_bytes():
                faults.append(f"{inside} is not the {name} of this checkout")
        bills = [name for name in names if name.startswith(f"{folder}/sboms/")]
        if not bills:
            faults.append(f"no bill of materials in {folder}/sboms")
        for name in bills:
            faults += unknown_parts(json.loads(archive.read(name)))
    inside = {name for name in names if not name.startswith(f"{folder}/")}
    modules = {name for name in inside if re.fullmatch(r"abut/_native\.(abi3\.so|pyd)", name)}
    if len(modules) != 1:
        faults.append(f"{len(modules)} modules abut/_native")
    for name in sorted(package_files() ^ (inside - modules)):
        faults.append(f"{name} is {'not in git' if name in inside else 'not in the wheel'}")
    return faults


def unknown_parts(bill: dict) -> list[str]:
    """Return the linked parts of a bill of materials that THIRD-PARTY-LICENSES does not have."""
    page = (ROOT / LICENCES[1]).read_text(encoding="utf-8")
    listed = set(re.findall(r"^(\S+ \S+): ", page, flags=re.MULTILINE))
    named = {f"{part['name']} {part['version']}" for part in bill.get("components", [])}
    ours = {f"{name} {version()}" for name in ("abut-core", "abut-py")}
    missing = listed_in_lock(named - listed - ours)
    return [f"the bill of materials names {part}, the licences do not" for part in missing]


def listed_in_lock(parts: set[str]) -> list[str]:
    """Return the parts that are compiled into the module, without macros and build scripts."""
    if not parts:
        return []
    tree = ["cargo", "tree", "--locked", "--package=abut-py", "--edges=normal,no-proc-macro"]
    tree += ["--prefix=none", "--format={p}"]
    found: set[str] = set()
    for target in targets():
        done = subprocess.run(
            [*tree, f"--target={target}"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        lines = (line.split() for line in done.stdout.splitlines() if line)
        found |= {f"{line[0]} {line[1].removeprefix('v')}" for line in lines}
    return sorted(parts & found)


def sdist_faults(sdist: Path) -> list[str]:
    """Return the faults of the sdist."""
    faults = []
    folder = f"abut-{version()}"
    with tarfile.open(sdist) as archive:
        names = {member.name for member in archive.getmembers() if member.isfile()}
        for name in LICENCES:
            if f"{folder}/{name}" not in names:
                faults.append(f"{name} is missing")
    missing = {f"{folder}/python/{name}" for name in package_files()} - names
    faults += [f"{name} is missing" for name in sorted(missing)]
    if needless := {name for name in names if re.search(r"\.(so|pyd|pyc)$|/\.venv|/dist/", name)}:
        faults.append(f"built files in the sdist: {', '.join(sorted(needless))}")
    return faults


def tools(files: list[Path], wheels: list[Path]) -> bool:
    """Run the tools that check the formats, and return whether all succeed."""
    scripts = Path(sysconfig.get_path("scripts"))
    commands = [["twine", "check", "--strict", *map(str, files)]]
    # The extension and the pytest plugin next to the package are intended.
    commands += [["check-wheel-contents", "--toplevel=abut,_abut_pytest.py", *map(str, wheels)]]
    commands += [["abi3audit", "--strict", "--verbose", *map(str, wheels)]]
    done = [subprocess.run([scripts / name, *rest]) for name, *rest in commands]
    return not any(one.returncode for one in done)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dist", type=Path, help="the folder")
    parser.add_argument("--all-platforms", action="store_true", help="as the release has them")
    options = parser.parse_args()
    files = sorted(file for file in options.dist.iterdir() if file.is_file())
    wheels = [file for file in files if file.suffix == ".whl"]
    names = {file.name for file in files}
    sdist = f"abut-{version()}.tar.gz"
    allowed = {*expected_wheels(), sdist}
    faults = [f"{name}: not a file of abut {version()}" for name in sorted(names - allowed)]
    wanted = allowed if options.all_platforms else {sdist}
    faults += [f"{name}: missing" for name in sorted(wanted - names)]
    if not wheels:
        faults.append("no wheel")
    check: Callable[[Path], list[str]]
    for file in files:
        check = wheel_faults if file in wheels else sdist_faults
        faults += [f"{file.name}: {fault}" for fault in check(file)] if file.name in allowed else []
    is_content = tools(files, wheels)
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    if faults or not is_content:
        sys.exit(f"{options.dist} cannot be published")
    sys.stdout.write(f"{len(files)} files of abut {version()} are as they should be\n")


if __name__ == "__main__":
    main()
