"""The README is short, its figures are the benchmark's, and links of documents lead somewhere.

tests/docs/test_start.py runs its quickstart.
"""

import json
import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SITE = "https://abut-rl.github.io/abut/"


def test_it_is_short_and_headed() -> None:
    assert len(README.splitlines()) < 120
    headings = re.findall(r"^## (.*)$", README, flags=re.MULTILINE)
    assert headings == [
        *("Install", "Quickstart", "Results", "Features", "Contribute", "Licence"),
    ]
    assert README.index("![") < README.index("## Install"), "the picture comes first"


FIGURES = [
    # The row of the table, and for each of its figures the benchmark's row, case and side.
    ("play 128 rollouts", "pace", "replies as tool messages, calls parsed", "abut"),
    ("play 128 rollouts", "pace", "replies as tool messages, calls parsed", "TRL _tool_call_loop"),
    ("play 128 rollouts", "pace", "replies as user turns", "trl-env rollout_func"),
    ("assemble 512 rollouts", "rollouts", "replies as tool messages, calls parsed", "abut"),
    (
        "assemble 512 rollouts",
        "rollouts",
        "replies as tool messages, calls parsed",
        "TRL _tool_call_loop",
    ),
    ("append a reply", "append", "to 120,000 tokens", "abut"),
    ("append a reply", "append", "to 120,000 tokens", "TRL _get_tool_suffix_ids"),
    ("append a reply", "append", "to 120,000 tokens", "apply_chat_template"),
    ("encode 1 MB", "encode", "text seen for the first time", "abut"),
    ("encode 1 MB", "encode", "text seen for the first time", "tokenizers encode"),
    ("encode 1 MB", "encode", "text seen for the first time", "gigatoken encode"),
]


def test_the_table_has_the_figures_of_the_benchmark() -> None:
    measured = json.loads(
        (ROOT / "docs" / "background" / "performance.json").read_text(encoding="utf-8")
    )
    medians = {
        (row["name"], figure["case"], figure["side"]): figure["median"]
        for row in measured["rows"]
        for figure in row["figures"]
    }
    expected: dict[str, list[float]] = {}
    times: dict[str, list[int]] = {}
    for begins, row, case, side in FIGURES:
        seconds = medians[row, case, side]
        expected.setdefault(begins, []).append(seconds)
        if not side.startswith("abut") and (ours := medians.get((row, case, "abut"))) is not None:
            times.setdefault(begins, []).append(round(seconds / ours))
    for begins, seconds_of_row in expected.items():
        (line,) = [line for line in README.splitlines() if line.startswith(f"| {begins}")]
        told = re.findall(r"([\d.]+) (ms|s)\b", line.split(" | ", 1)[1])
        shown = [float(number) * {"ms": 1e-3, "s": 1.0}[unit] for number, unit in told]
        assert shown == pytest.approx(seconds_of_row, rel=0.06), line
        said = [int(number) for number in re.findall(r"(\d+) times", line)]
        assert not said or said == times[begins], line


def test_the_links_lead_somewhere_on_the_package_index_too() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Repository"]
    raw = repository.replace("github.com", "raw.githubusercontent.com") + "/main/"
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    links = re.findall(r"(?<!!)\[[^\]]+\]\(([^)]+)\)", README)
    assert len(links) > 20
    for base, addresses in (raw, pictures), (f"{repository}/blob/main/", links):
        for address in addresses:
            if address == SITE:
                continue
            assert address.startswith(base), "there, a path leads nowhere"
            assert (ROOT / address.removeprefix(base).partition("#")[0]).is_file(), address


def test_every_file_and_make_target_that_the_documents_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, flags=re.MULTILINE))
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
        named = set(re.findall(r"`make (\w+)`", text))
        assert named <= targets, f"{document.name}: {named - targets}"


PAGES = sorted(page for page in (ROOT / "docs").glob("*/*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_what_it_is_for(page: Path) -> None:
    title, blank, first = page.read_text(encoding="utf-8").splitlines()[:3]
    assert title.startswith("# ")
    assert not blank
    assert re.match(r"\[?\w|`(?!``)", first), "words, and no code, table or picture"


def test_the_picture_is_what_the_tokenizer_does() -> None:
    drawn = runpy.run_path(str(ROOT / "scripts" / "draw_why.py"))["picture"]()
    assert drawn == (ROOT / "docs" / "background" / "why.svg").read_text(encoding="utf-8")
