"""The first pages and the README: their code runs, and their tables have what there is."""

import contextlib
import io
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from abut.records import read_records
from tests.kit.checkout import ROOT
from tests.kit.page_run import numbers_of, page_blocks, page_path, run_page

(README,) = (block.text for block in page_blocks("README.md") if block.language == "python")
(BY_HAND,) = (block.text for block in page_blocks("trajectory.md") if block.language == "python")


def rising(shown: str, printed: str) -> None:
    """The last line is the script's own; its first figure is low, before the model learns."""
    line = printed.splitlines()[-1]
    assert re.fullmatch(r"mean reward:( 0\.\d\d){4}", line)
    for rewards in numbers_of(shown), numbers_of(line):
        assert rewards[0] < 0.3
        assert rewards[-1] > 0.4


@pytest.mark.docs
def test_the_quickstart_trains(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    run_page("quickstart.md", tmp_path, differs={"python quickstart.py": rising})
    records = list(read_records(tmp_path / "rollouts.jsonl"))
    assert len(records) == 20 * 80
    assert not any(record["error"] for record in records)


@pytest.mark.docs
def test_the_readme_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    exec(compile(README, "README.md", "exec"), {})


def test_the_first_step_of_the_readme_is_short_and_its_assert_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    code = README
    for shown, here in {
        "max_steps=20": "max_steps=1, disable_tqdm=True",
        "logging_steps=5": "logging_steps=1",
    }.items():
        assert code.count(shown) == 1
        code = code.replace(shown, here)
    assert code.splitlines()[-1].startswith("assert ")
    variables: dict[str, Any] = {}
    with pytest.raises(AssertionError):  # one step has nothing to compare with
        exec(compile(code, "README.md", "exec"), variables)
    logged = variables["trainer"].state.log_history[0]
    assert logged["rollout/turns/mean"] > 3
    assert logged["rollout/error_frac"] == 0
    assert logged["step_time"] < 120


def test_the_readme_and_the_quickstart_have_the_same_environment() -> None:
    quickstart = page_blocks("quickstart.md")[0].text
    start, end = "class GuessNumber", "tokenizer ="
    environments = [code[code.index(start) : code.index(end)] for code in (README, quickstart)]
    assert environments[0].split() == environments[1].split()


def test_the_trajectory_prints_what_is_shown() -> None:
    shown = page_blocks("trajectory.md")[1].text
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(BY_HAND, "trajectory.md", "exec"), {})
    assert printed.getvalue() == shown
    assert "exact=False" in shown


def test_the_assert_of_the_trajectory_can_fail() -> None:
    broken = BY_HAND.replace("[*request, *sampled]", "[*request, *seam.canonical_ids]")
    assert broken != BY_HAND
    with pytest.raises(AssertionError), contextlib.redirect_stdout(io.StringIO()):
        exec(compile(broken, "trajectory.md", "exec"), {})


def test_the_installation_has_every_extra_and_version() -> None:
    page = page_path("install.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(r"^\| (`[\w-]+`(?:, `[\w-]+`)*) \|", page, flags=re.MULTILINE)
    extras = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert extras == {*project["optional-dependencies"]} - {"dev"}
    pythons = [text.rpartition(" ")[2] for text in project["classifiers"] if ":: 3." in text]
    assert f"CPython {pythons[0]} to {pythons[-1]}" in page
    (trl,) = (need for need in project["optional-dependencies"]["trl"] if need.startswith("trl"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    newest = re.search(r"^TRL_VERSIONS := .* (\d+\.\d+)\.\d+$", makefile, flags=re.MULTILINE)
    assert newest
    assert f"| TRL | {trl.removeprefix('trl>=')} to {newest[1]} |" in page
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    assert f"version {manifest['workspace']['package']['rust-version']} or later" in page
