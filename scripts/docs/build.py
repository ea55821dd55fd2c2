"""Build the documentation site into `site/`, with one Markdown file next to each HTML page.

Hand-written pages are in `docs/`, where their links also work on GitHub. The generated ones are
made from the source each time and never committed. A hand-written page links to a generated one by
its address on the site; this script makes that a link between pages, so every link is checked.
"""

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from scripts.docs import api, reference
from scripts.docs.checks import problems

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "mkdocs.yml"
WORK = ROOT / "target" / "docs"
SITE = ROOT / "site"


def main() -> int:
    """Build the site, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zensical", default="zensical", help="the program that makes the HTML")
    args = parser.parse_args()
    config = read_config()
    write_sources(WORK, config)
    command = [
        Path(args.zensical).absolute(),
        "build",
        "--clean",
        "--strict",
        "--config-file",
        "mkdocs.yml",
    ]
    programs = Path(args.zensical).absolute().parent
    write_fonts(programs, WORK / "pages" / "assets" / "fonts")
    (mermaid,) = programs.parent.glob("**/site-packages/mermaidx/assets/mermaid.js")
    shutil.copyfile(mermaid, WORK / "pages" / "assets" / "mermaid.js")
    done = subprocess.run(command, cwd=WORK, text=True, capture_output=True)
    if done.returncode:
        said = done.stdout + done.stderr.partition("Traceback")[0]
        sys.stderr.write(re.sub("\x1b\\[[0-9;]*m", "", said))
        return 1
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(WORK / "site", SITE)
    shutil.copytree(WORK / "pages", SITE, dirs_exist_ok=True)  # the Markdown of each page
    (SITE / "llms.txt").write_text(llms_txt(SITE, config), encoding="utf-8")
    found = problems(SITE, config["site_url"])
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    count = sum(1 for _ in SITE.rglob("*.html"))
    sys.stderr.write(f"site/: {count} pages, {len(found)} problems\n")
    return 1 if found else 0


def read_config() -> dict[str, Any]:
    """Return the configuration of the site."""
    text = re.sub(
        r"!!python/\S+", "", CONFIG.read_text(encoding="utf-8")
    )  # only Zensical needs these
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def write_sources(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the folder that Zensical reads: its configuration, the pages, the theme."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "pages", ignore=shutil.ignore_patterns("theme"))
    shutil.copytree(ROOT / "docs" / "theme", folder / "theme")
    shutil.copyfile(CONFIG, folder / "mkdocs.yml")
    pages = folder / "pages"
    for name, text in generated_pages().items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(text, encoding="utf-8")
    for page in sorted(pages.rglob("*.md")):
        name = page.relative_to(pages).as_posix()
        text = page.read_text(encoding="utf-8")
        page.write_text(with_site_links(text, name, pages, config), encoding="utf-8")


FONTS = {"inter": "Inter[opsz,wght].ttf", "jetbrains_mono": "JetBrainsMono[wght].ttf"}
CHARACTERS = "U+20-7E,U+A0-17F,U+2010-206F,U+20AC,U+2190-21FF,U+2200-22FF,U+2420-2423,U+2500-257F"
"""The characters of Latin text, out of Inter's 2,900: 110 KB instead of 880 KB."""


def write_fonts(programs: Path, folder: Path) -> None:
    """Write the fonts of the site and their licences, from the packages of `programs`."""
    folder.mkdir(parents=True)
    for name, file in FONTS.items():
        (package,) = programs.parent.glob(f"**/site-packages/fontpkg_{name}")
        shutil.copyfile(package / "LICENSE", folder / f"{name}-LICENSE.txt")
        options = [f"--unicodes={CHARACTERS}", "--flavor=woff2", "--layout-features=*"]
        made = f"--output-file={folder / name}.woff2"
        command = [programs / "pyftsubset", package / "files" / file, *options, made]
        subprocess.run(command, check=True)


def generated_pages() -> dict[str, str]:
    """Return the pages that are made from the source, by their path below `docs`."""
    return api.pages() | reference.pages()


_LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))|(?<=^)(\[[^\]]+\]: )(\S+)$", re.MULTILINE)


def with_site_links(text: str, name: str, pages: Path, config: Mapping[str, Any]) -> str:
    """Return a page with links that work on the site.

    A link that leaves `docs` leads to the file in the repository. An address of the site becomes a
    link to that page. Every other link stays.

    Args:
        text: the Markdown of the page.
        name: its path below `docs`, with slashes.
        pages: the folder of all pages, the generated ones too.
        config: of the site: `site_url` and `repo_url`.

    Raises:
        ValueError: a link leads to a file or page that does not exist.
    """

    def replaced(match: re.Match[str]) -> str:
        begin, link = match[1] or "", match[2] or match[0]
        return begin + _site_link(link, name, pages, config)

    blocks = re.split(r"(^ *```.*?^ *```$|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    blocks[::2] = [_LINK.sub(replaced, block) for block in blocks[::2]]
    # In code in a table, GitHub requires an escaped bar, and Zensical would show the backslash.
    blocks[1::2] = [block if "\n" in block else block.replace("\\|", "|") for block in blocks[1::2]]
    return "".join(blocks)


def _site_link(link: str, name: str, pages: Path, config: Mapping[str, Any]) -> str:
    path, hash_, anchor = link.partition("#")
    here = (ROOT / "docs" / name).parent
    if path.startswith(config["site_url"]):
        target = path.removeprefix(config["site_url"]).strip("/")
        page = f"{target}.md" if (pages / f"{target}.md").is_file() else f"{target}/index.md"
        if not (pages / page.lstrip("/")).is_file():
            raise ValueError(f"{name}: {link} is not a page of the site")
        path = posixpath.relpath(page.lstrip("/"), posixpath.dirname(name) or ".")
    elif path and not re.match(r"\w+:", path):
        target_file = (here / path).resolve()
        if not target_file.is_relative_to(ROOT / "docs"):
            if not target_file.exists():
                raise ValueError(f"{name}: {link} does not exist")
            kind = "tree" if target_file.is_dir() else "blob"
            inside = target_file.relative_to(ROOT).as_posix()
            path = f"{config['repo_url']}/{kind}/main/{inside}"
    return path + hash_ + anchor


def nav_pages(nav: list[Any], part: str = "") -> Iterator[tuple[str, str]]:
    """Yield each page of the navigation with the part of the site that it belongs to."""
    for entry in nav:
        if isinstance(entry, str):
            yield part, entry
            continue
        for title, inner in entry.items():
            if isinstance(inner, str):
                yield part, inner
            else:
                yield from nav_pages(inner, part or title)


def llms_txt(site: Path, config: Mapping[str, Any]) -> str:
    """Return `llms.txt`: each Markdown page with its title and first sentence, part by part."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    shown = None
    for part, name in nav_pages(config["nav"]):
        if part != shown:
            lines += ["", f"## {part}", ""]
            shown = part
        title, summary = title_and_summary((site / name).read_text(encoding="utf-8"))
        about = summary or config["site_description"]
        lines.append(f"- [{title}]({config['site_url']}{name}): {about}")
    return "\n".join(lines) + "\n"


def title_and_summary(page: str) -> tuple[str, str]:
    """Return the title of a page, and the first sentence of its first paragraph."""
    _, _, rest = page.partition("# ")
    title, _, rest = rest.partition("\n")
    prose = re.sub(r"^ *```.*?^ *```$", "", rest, flags=re.MULTILINE | re.DOTALL)
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n", prose)]
    text = next((block for block in blocks if block and not block.startswith(_NO_PROSE)), "")
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    sentence = re.match(r".*?[.?](?= |$)", text)
    return title, (sentence[0] if sentence else text)


_NO_PROSE = ("#", "|", ">", "![", "- ", "<", "1. ")


if __name__ == "__main__":
    sys.exit(main())
