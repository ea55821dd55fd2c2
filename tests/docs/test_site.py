"""Every page has a place in the site, links lead somewhere, and nothing is loaded from outside."""

from pathlib import Path

import pytest

from scripts.docs.build import (
    llms_txt,
    nav_pages,
    read_config,
    title_and_summary,
    with_site_links,
    write_sources,
)
from scripts.docs.checks import problems
from tests.kit.checkout import ROOT

CONFIG = read_config()
URL = CONFIG["site_url"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    write_sources(folder, CONFIG)
    return folder / "pages"


def test_every_page_is_in_the_navigation_once(sources: Path) -> None:
    pages = sorted(page.relative_to(sources).as_posix() for page in sources.rglob("*.md"))
    assert sorted(name for _, name in nav_pages(CONFIG["nav"])) == pages


def test_a_page_stands_in_the_part_of_its_folder() -> None:
    for part, name in nav_pages(CONFIG["nav"]):
        if "/" in name:
            assert name.startswith(f"{part.lower()}/"), f"{name} is under {part}"


def test_llms_txt_has_every_page_with_a_title_and_a_sentence(sources: Path) -> None:
    lines = [line for line in llms_txt(sources, CONFIG).splitlines() if line.startswith("- ")]
    assert len(lines) == len(list(nav_pages(CONFIG["nav"])))
    for line, (_, name) in zip(lines, nav_pages(CONFIG["nav"]), strict=True):
        title, _, summary = line.partition(f"]({URL}{name}): ")
        assert len(title) > 4
        assert len(summary) > 10, f"{name} does not begin with a sentence"


def test_the_summary_is_the_first_sentence_of_prose() -> None:
    page = "# Tools\n\n```python\nimport abut\n```\n\nSee [the page](x.md) first. Then more.\n"
    assert title_and_summary(page) == ("Tools", "See the page first.")


def test_links_out_of_the_folder_lead_to_the_repository(tmp_path: Path) -> None:
    text = (
        "[a](../../examples/wordle_grpo.py), [b](../../examples#c), [d](tools.md#e)\n\n"
        "[f]: ../../README.md\n"
    )
    assert with_site_links(text, "how-to/x.md", tmp_path, CONFIG) == (
        "[a](https://github.com/abut-rl/abut/blob/main/examples/wordle_grpo.py), "
        "[b](https://github.com/abut-rl/abut/tree/main/examples#c), [d](tools.md#e)\n\n"
        "[f]: https://github.com/abut-rl/abut/blob/main/README.md\n"
    )
    with pytest.raises(ValueError, match=r"how-to/x.md: ../../nowhere.py does not exist"):
        with_site_links("[a](../../nowhere.py)", "how-to/x.md", tmp_path, CONFIG)


def test_an_address_of_the_site_becomes_a_link_to_the_page(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "errors.md").touch()
    text = f"[a]({URL}reference/errors/#b) and `]({URL}x)`\n```\n[a]({URL}c)\n```\n"
    assert with_site_links(text, "how-to/x.md", tmp_path, CONFIG) == text.replace(
        f"{URL}reference/errors/#b", "../reference/errors.md#b"
    )
    with pytest.raises(ValueError, match="gone/ is not a page of the site"):
        with_site_links(f"[a]({URL}gone/)", "how-to/x.md", tmp_path, CONFIG)


def test_the_documents_beside_the_site_link_to_pages_that_exist(sources: Path) -> None:
    for document in ROOT.glob("*.md"):
        with_site_links(document.read_text(encoding="utf-8"), "../README.md", sources, CONFIG)


PAGE = '<h1 id="top">x</h1><a href="b/#there">b</a><img src="c.png"><a href="https://a.org">a</a>'


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ("", None),
        ('<a href="#top">x</a>', None),
        ('<a href="#gone">x</a>', "#gone: index.html has no anchor of that name"),
        ('<a href="b/#gone">x</a>', "b/#gone: b/index.html has no anchor of that name"),
        ('<a href="gone/">x</a>', "gone/ does not exist"),
        (f'<a href="{URL}gone/">x</a>', f"{URL}gone/ does not exist"),
        ('<img src="gone.png">', "loads gone.png, which does not exist"),
        ('<img src="//a.org/a.png">', "loads //a.org/a.png, which is not in the site"),
        ('<script src="https://a.org/a.js">', "loads https://a.org/a.js, which is not in the site"),
        ('<link rel="preconnect" href="https://a.org">', "https://a.org, which is not in the site"),
        (
            "<style>@font-face {src: url('http://a.org/f')}</style>",
            "loads http://a.org/f, which is",
        ),
        ('<p style="background: url(http://a.org/i)">', "loads http://a.org/i, which is"),
    ],
)
def test_broken_links_and_things_from_outside_are_found(
    tmp_path: Path, added: str, problem: str | None
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(PAGE + added)
    (tmp_path / "b" / "index.html").write_text('<h2 id="there">x</h2><a href="../">a</a>')
    (tmp_path / "c.png").touch()
    found = problems(tmp_path, URL)
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]


def test_a_style_sheet_that_loads_from_outside_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text('@import "https://a.org/b.css"; a { background: url(#x) }')
    assert problems(tmp_path, URL) == ["a.css: loads https://a.org/b.css, which is not in the site"]
