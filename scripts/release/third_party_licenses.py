"""Write THIRD-PARTY-LICENSES: the code that is linked into the wheels, with its licences.

    python scripts/release/third_party_licenses.py           # write the file
    python scripts/release/third_party_licenses.py --check   # check whether it is up to date

The file has each crate below `abut-py` that is compiled into the extension on a platform of the
release (without build scripts and macros, whose code is not linked), their C sources and tables,
and Rust's standard library. The script fails for a crate without a licence text. It also fails if
the Rust version is not the one that builds the wheels, because its standard library has other
parts.
"""

import argparse
import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rust import release_rust, targets

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "THIRD-PARTY-LICENSES"
# Names of licence files; Oniguruma and the Unicode tables have theirs in subfolders.
LICENCE = re.compile(r"(licen[sc]e|copying|copyright|notice|unlicense)([-_.].*)?$", re.IGNORECASE)
# Parts of Rust's notices that are linked only on systems without wheels, or only into tests and
# build scripts.
NOT_LINKED = re.compile(
    r"(cc|dlmalloc|fortanix-sgx-abi|getopts|hermit-abi|moto-rt|r-efi.*|rand.*|shlex|unwinding"
    r"|vex-sdk|wasi|wit-bindgen|windows_(aarch64|i686)_.*|windows_x86_64_gnu.*)$"
)
HEAD = """\
Third-party software in abut's wheels
=====================================

abut itself is licensed under the Apache License 2.0 (LICENSE). The compiled module of a wheel
(abut/_native) also contains the software below, under its own licences. The Python code contains
none. Where a package may be used under one of several licences, all texts that it ships are here.

onig_sys contains Oniguruma. Tables made of the Unicode Character Database are in Oniguruma,
regex-syntax, unicode-normalization-alignments, unicode-segmentation, unicode_categories and Rust's
standard library: they are of Unicode, Inc., under the Unicode licence (Unicode-3.0.txt).

This file is written by scripts/release/third_party_licenses.py (make licences) from Cargo.lock.
"""


@dataclass(frozen=True)
class Package:
    """A package, and its licence texts as (file name, text)."""

    name: str
    version: str
    licence: str
    address: str
    texts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def linked(metadata: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the third-party packages that are compiled into the extension on one platform."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [id for id, package in packages.items() if package["name"] == "abut-py"]
    seen = set(waiting)
    while waiting:
        id = waiting.pop()
        if packages[id]["source"] is not None:
            yield packages[id]
        for need in nodes[id]["deps"]:
            kinds = [kind["kind"] for kind in need["dep_kinds"]]
            targets = packages[need["pkg"]]["targets"]
            is_macro = any("proc-macro" in target["kind"] for target in targets)
            if None in kinds and not is_macro and need["pkg"] not in seen:
                seen.add(need["pkg"])
                waiting.append(need["pkg"])


def crates() -> dict[str, Package]:
    """Return the crates by name and version, with the sources that cargo has downloaded."""
    found: dict[str, Package] = {}
    for target in targets():
        command = ["cargo", "metadata", "--locked", "--format-version=1"]
        done = subprocess.run(
            [*command, f"--filter-platform={target}"], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        for package in linked(json.loads(done.stdout)):
            key = f"{package['name']} {package['version']}"
            if key not in found:
                found[key] = crate(package)
    return found


def crate(package: dict[str, Any]) -> Package:
    """Return a crate with all licence texts below its folder."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(
        file for file in folder.rglob("*") if LICENCE.match(file.name) and file.is_file()
    )
    texts = [(file.relative_to(folder).as_posix(), read(file)) for file in files]
    if not texts:
        sys.exit(
            f"{package['name']} {package['version']} ships no licence text\n"
            "hint: ask its authors for one, or do without the crate"
        )
    name, version = package["name"], package["version"]
    licence = package["license"] or f"see {texts[0][0]}"
    address = f"https://crates.io/crates/{name}/{version}"
    return Package(name, version, licence, address, tuple(texts))


def read(file: Path) -> str:
    """Strip spaces at line ends, because they differ between copies of a licence."""
    text = file.read_text(encoding="utf-8")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


def this_rust() -> str:
    """Return the version of the installed compiler."""
    done = subprocess.run(
        ["rustc", "--version"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.split()[1]


def standard_library() -> list[Package]:
    """Return the parts of Rust's standard library, from the notices of the compiler."""
    sysroot = subprocess.run(
        ["rustc", "--print", "sysroot"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    documents = Path(sysroot) / "share" / "doc" / "rust"
    notices = (documents / "COPYRIGHT-library.html").read_text(encoding="utf-8")
    found = []
    for name, licence, address, texts in COMPILED_IN:
        files = [(f"{text}.txt", read(documents / "licenses" / f"{text}.txt")) for text in texts]
        found.append(Package(name, release_rust(), licence, address, tuple(files)))
    for part in notices.split("<h3>")[1:]:
        head = re.match(r"\W*(.+?)-(\d[^<]*)</h3>", part)
        if head and not NOT_LINKED.match(head[1]):
            found.append(part_of_std(head[1], head[2], part))
    return found


# Code that compilers add: in wheels for Linux, LLVM's unwinding and arithmetic (through Zig); in
# others, the same arithmetic in Rust.
COMPILED_IN = (
    (
        "Rust's standard library",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "https://github.com/rust-lang/rust, by the Rust project's developers",
        ("Apache-2.0", "MIT", "Unicode-3.0"),
    ),
    (
        "LLVM's libunwind and compiler-rt, linked with Rust",
        "Apache-2.0 WITH LLVM-exception",
        "https://llvm.org",
        ("Apache-2.0", "LLVM-exception"),
    ),
)


def part_of_std(name: str, version: str, notices: str) -> Package:
    """Return a crate of the standard library from its section of the notices."""
    licence = re.search(r"License:</b> ([^<]+)</p>", notices)
    files = re.findall(r"<code>([^<]+)</code></summary>\s*<pre>(.*?)</pre>", notices, re.DOTALL)
    if licence is None or not files:
        sys.exit(f"Rust's notices of {name} {version} are written in another way than expected")
    texts = []
    for file, text in files:
        lines = [line.rstrip() for line in html.unescape(text).splitlines()]
        texts.append((file, "\n".join(lines).strip("\n") + "\n"))
    address = f"https://crates.io/crates/{name}/{version}"
    return Package(name, version, html.unescape(licence[1]), address, tuple(texts))


def page(packages: list[Package]) -> str:
    """Return the whole file. Texts that differ only in their line breaks appear once."""
    owners: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for package in packages:
        for name, text in package.texts:
            same = " ".join(text.split())
            texts.setdefault(same, text)
            owners.setdefault(same, []).append(f"{package} ({name})")
    lines = [HEAD, "Packages", "--------", ""]
    for package in packages:
        lines += [f"{package}: {package.licence}", f"    {package.address}"]
    lines += ["", "Texts", "-----"]
    for same, text in texts.items():
        lines += ["", "=" * 80, *(f"Of {owner}" for owner in owners[same]), "=" * 80, "", text]
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="do not write the file, but fail if it is outdated"
    )
    options = parser.parse_args()
    if this_rust() != release_rust():
        sys.exit(
            f"wheels are built by Rust {release_rust()} (release-rust in Cargo.toml), and this is "
            f"{this_rust()}\nhint: RUSTUP_TOOLCHAIN={release_rust()} python {sys.argv[0]}"
        )
    found = crates()
    text = page([found[key] for key in sorted(found)] + standard_library())
    if not options.check:
        PAGE.write_text(text, encoding="utf-8", newline="\n")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE.name} is not what Cargo.lock says\nhint: make licences")


if __name__ == "__main__":
    main()
