"""Check the changelog, all copies of the version number, and links.

    python scripts/release/check_papers.py [--tag v0.3.0]

The version is defined in Cargo.toml. Lock files, the newest heading of the changelog (with a date)
and the tag must have the same version. Links must lead to files, headings and lines of this
checkout.
"""

import argparse
import datetime
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from rust import ROOT, version

HEADING = re.compile(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?(.*)$", re.MULTILINE)
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
AREAS = {
    "Environments and tools",
    "Environments of other packages",
    "Agents and the gateway",
    "Training with TRL",
    "Images",
    "Samplers and streams",
    "Templates and tool calls",
    "Evaluation, records and the command line",
    "Documentation",
}
SECTIONS = {"Breaking", "Highlights", *KINDS, *AREAS}
"""The sections of a version: by kind up to 0.2, by area since 0.3."""
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def tracked(pattern: str) -> list[Path]:
    """Return the tracked files of this checkout."""
    done = subprocess.run(
        ["git", "ls-files", pattern], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return [ROOT / line for line in done.stdout.splitlines()]


def changelog_faults(text: str, wanted: str) -> Iterator[str]:
    """Yield the faults of a changelog for a version."""
    found = list(HEADING.finditer(text))
    names = [match[1] for match in found]
    if "Unreleased" in names:
        yield "there is an Unreleased section: give it the version and the date"
    if names[:1] != [wanted]:
        yield f"the newest heading is {names[:1]}, the version {wanted}"
    dates = [match[2] for match in found if match[1] != "Unreleased"]
    if None in dates:
        yield "a version has no date"
    else:
        days = [datetime.date.fromisoformat(date) for date in dates]
        if days != sorted(days, reverse=True) or days[0] > datetime.date.today():
            yield "the dates are not in descending order from today"
    for name in names:
        if not re.search(rf"^\[{re.escape(name)}\]: https://", text, re.MULTILINE):
            yield f"[{name}] has no address"
    for name in set(re.findall(r"^### (.*)$", text, re.MULTILINE)) - SECTIONS:
        yield f"### {name} is not a section that check_papers.py knows"
    newest = text.partition("\n## ")[2].partition("\n## ")[0]
    if not re.search(r"^- ", newest, re.MULTILINE):
        yield f"there is no entry for {names[0]}"


def version_faults() -> Iterator[str]:
    """Yield the places with another version than Cargo.toml."""
    for lock in ("Cargo.lock", "rust/fuzz/Cargo.lock"):
        packages = tomllib.loads((ROOT / lock).read_text(encoding="utf-8"))["package"]
        for package in packages:
            if package["name"] in ("abut-core", "abut-py") and package["version"] != version():
                yield f"{lock} has {package['name']} {package['version']}: cargo update --workspace"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if "version" in project:
        yield "pyproject.toml has a version of its own: it is dynamic"
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    if re.search(r"^(version|date-released):", citation, re.MULTILINE):
        yield "CITATION.cff has a version of its own: leave it to the tag"


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as the host makes them."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lower())
        name = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        count = 0
        while (anchor := f"{name}-{count}" if count else name) in found:
            count += 1
        found.add(anchor)
    return found


def link_faults(page: Path, text: str) -> Iterator[str]:
    """Yield the broken links of a page; links to other sites are not checked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = project["urls"]["Repository"] + "/blob/main/"
    prose = CODE.sub("", text)
    links = re.findall(r"\]\(<?([^)\s>]+)>?\)", prose)
    links += re.findall(r"^\[[^\]]+\]: (\S+)$", prose, re.MULTILINE)
    for link in links:
        target, _, anchor = link.partition("#")
        if target.startswith(own):
            file = ROOT / target.removeprefix(own)
        elif re.match(r"[a-z]+:", target):
            continue
        else:
            file = (page.parent / target) if target else page
        if not file.exists():
            yield f"{link}: there is no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text("utf-8")):
            yield f"{link}: there is no such heading"


def faults(tag: str | None) -> Iterator[str]:
    """Yield all faults."""
    if tag is not None and tag != f"v{version()}":
        yield f"the tag is {tag}, the version {version()}"
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    yield from (f"CHANGELOG.md: {fault}" for fault in changelog_faults(changelog, version()))
    yield from version_faults()
    for page in tracked("*.md"):
        text = page.read_text(encoding="utf-8")
        yield from (f"{page.relative_to(ROOT)}: {fault}" for fault in link_faults(page, text))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", help="the tag of the release")
    found = list(faults(parser.parse_args().tag))
    for fault in found:
        sys.stderr.write(f"{fault}\n")
    if found:
        sys.exit(1)
    sys.stdout.write(f"changelog, version and links are correct for abut {version()}\n")


if __name__ == "__main__":
    main()
