"""A release goes out by a pushed tag alone, tested and pinned, and its checks can fail."""

import importlib.util
import json
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts" / "release"
WORKFLOWS = {
    file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))
    for file in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
JOBS = [
    (f"{name}/{job}", WORKFLOWS[name]["jobs"][job])
    for name in WORKFLOWS
    for job in WORKFLOWS[name]["jobs"]
]
RELEASE = WORKFLOWS["release"]["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*")


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script of the release, imported."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(f"release_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def steps(job: dict[str, Any], action: str) -> Iterator[dict[str, Any]]:
    return (s for s in job.get("steps", []) if s.get("uses", "").startswith(f"{action}@"))


def pythons(job: dict[str, Any]) -> set[str]:
    return set(job["strategy"]["matrix"]["python"])


def test_only_a_tag_that_was_pushed_publishes_and_only_after_all_other_jobs() -> None:
    publish = RELEASE["publish"]
    assert publish["if"] == "${{ github.event_name == 'push' && github.ref_type == 'tag' }}"
    assert set(publish["needs"]) == set(RELEASE) - {"publish"}
    # YAML reads `on` as a boolean.
    assert WORKFLOWS["release"][True] == {"push": {"tags": ["v*"]}, "workflow_dispatch": None}
    uploads = [name for name, job in JOBS if [*steps(job, "pypa/gh-action-pypi-publish")]]
    assert uploads == ["release/publish"]


def test_what_must_hold_for_each_commit_must_hold_for_a_tag() -> None:
    called = {job["uses"] for job in RELEASE.values() if "uses" in job}
    # A release does not wait for the machine with a GPU, which may be off.
    others = WORKFLOWS.keys() - {"release", "pages", "gpu"}
    assert called == {f"./.github/workflows/{name}.yml" for name in others}
    assert all("workflow_call" in WORKFLOWS[name][True] for name in others)


def test_each_wheel_and_the_sdist_are_tested_on_the_oldest_and_the_newest_python() -> None:
    built = {one["target"] for one in RELEASE["wheel"]["strategy"]["matrix"]["include"]}
    tried = {one["dist"] for one in RELEASE["test"]["strategy"]["matrix"]["machine"]}
    assert tried == {*built, "sdist"}
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    minors = sorted(int(name[2:]) for name in named)
    assert minors == [*range(minors[0], minors[-1] + 1)]
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    for job in (RELEASE["test"], WORKFLOWS["ci"]["jobs"]["test"]):
        assert pythons(job) == {f"3.{minors[0]}", f"3.{minors[-1]}"}


MAY_WRITE = {
    "release/publish": {"id-token": "write"},
    "pages/publish": {"pages": "write", "id-token": "write"},
}


def test_each_job_may_read_and_only_those_that_publish_may_more() -> None:
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {}, name
        assert f"{name}-${{{{ github.ref }}}}" == workflow["concurrency"]["group"]
    for name, job in JOBS:
        assert job["permissions"] == MAY_WRITE.get(name, {"contents": "read"}), name
        assert "uses" in job or job["timeout-minutes"] <= 90, name


def test_the_site_is_published_from_main_alone_and_as_make_docs_builds_it() -> None:
    pages = WORKFLOWS["pages"]["jobs"]
    assert pages["publish"]["if"] == "${{ github.ref == 'refs/heads/main' }}"
    assert pages["publish"]["needs"] == "site"
    assert {"run": "make docs"} in pages["site"]["steps"]
    (upload,) = steps(pages["site"], "actions/upload-pages-artifact")
    assert upload["with"] == {"path": "site"}


def test_every_action_is_pinned_and_no_checkout_leaves_its_token() -> None:
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if "uses:" in line and "uses: ./" not in line:
                assert PINNED.search(line), f"{file.name}: {line}"
    for name, job in JOBS:
        for step in steps(job, "actions/checkout"):
            assert step["with"]["persist-credentials"] is False, name


@pytest.mark.parametrize(
    "line", ["uses: actions/checkout@v7", f"uses: actions/checkout@{'0' * 40}"]
)
def test_an_action_that_is_not_pinned_or_has_no_version_would_be_seen(line: str) -> None:
    assert not PINNED.search(line)


def test_nothing_that_is_published_comes_from_a_cache() -> None:
    assert not [name for name, job in RELEASE.items() if [*steps(job, "actions/cache")]]


def test_no_package_comes_from_a_second_index() -> None:
    files = [ROOT / "Makefile", *(ROOT / ".github").rglob("*.yml"), *(ROOT / "scripts").rglob("*")]
    for file in files:
        if file.is_file() and file.suffix != ".pyc":
            text = file.read_text(encoding="utf-8").lower().replace("_", "-")
            assert "extra-index" not in text, file


def test_what_the_jobs_run_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name, job in JOBS:
        for step in job.get("steps", []):
            text = step.get("run", "")
            for file in re.findall(r"[\w./]+\.(?:py|sh|txt)\b|\.ci/run", text):
                assert (ROOT / file).is_file(), f"{name}: {file}"
            for target in re.findall(r"make ([\w-]+)", text):
                assert re.search(rf"^[\w %-]*{target}", makefile, re.MULTILINE), f"{name}: {target}"


def test_the_tools_are_pinned_with_hashes_and_build_with_the_maturin_of_all() -> None:
    wanted = re.findall(r"^[\w-]+==.*$", (SCRIPTS / "tools.in").read_text(), re.MULTILINE)
    pins = re.findall(
        r"^([\w.-]+==\S+)(?: ; .*)? \\\n    --hash",
        (SCRIPTS / "tools.txt").read_text(),
        re.MULTILINE,
    )
    assert set(wanted) <= set(pins)
    (maturin,) = [pin for pin in pins if pin.startswith("maturin==")]
    assert maturin in (ROOT / "constraints.txt").read_text().splitlines()


def test_every_platform_has_a_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    dist, rust = script("check_dist", monkeypatch), script("rust", monkeypatch)
    assert set(dist.TAGS) == set(rust.targets())
    assert len(dist.expected_wheels()) == len(rust.targets())


PARTS = {"components": [{"name": "onig_sys", "version": "0.0.0"}]}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"LICENSE": b"mine"}, "dist-info/licenses/LICENSE is not the LICENSE of this checkout"),
        ({"sboms/abut.json": None}, "no bill of materials in "),
        (
            {"sboms/abut.json": json.dumps(PARTS).encode()},
            "the bill of materials names onig_sys 0.0.0, the licences do not",
        ),
        ({"abut/_native.abi3.so": None}, "0 modules abut/_native"),
        ({"abut/__init__.py": None}, "abut/__init__.py is not in the wheel"),
        ({"abut/notes.txt": b""}, "abut/notes.txt is not in git"),
    ],
)
def test_a_wheel_that_lacks_something_or_has_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, Any], fault: str | None
) -> None:
    dist = script("check_dist", monkeypatch)
    monkeypatch.setattr(dist, "package_files", lambda: {"abut/__init__.py"})
    monkeypatch.setattr(dist, "listed_in_lock", sorted)  # which of them are linked, cargo says
    folder = f"abut-{dist.version()}.dist-info/"
    places = {name: f"{folder}licenses/{name}" for name in dist.LICENCES}
    places["sboms/abut.json"] = f"{folder}sboms/abut.json"
    files = {places[name]: (ROOT / name).read_bytes() for name in dist.LICENCES}
    files |= {
        places["sboms/abut.json"]: b"{}",
        "abut/__init__.py": b"",
        "abut/_native.abi3.so": b"",
    }
    files |= {places.get(name, name): content for name, content in change.items()}
    wheel = tmp_path / "abut.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            if content is not None:
                archive.writestr(name, content)
    faults = dist.wheel_faults(wheel)
    assert [fault in found for found in faults] == ([True] if fault else []), faults


CHANGELOG = """\
# Changelog

## [1.1.0] - 2020-02-01

### Added
- A thing.

## [1.0.0] - 2020-01-01

### Added
- All.

[1.1.0]: https://example.org/1.1.0
[1.0.0]: https://example.org/1.0.0
"""


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("", "", None),
        (
            "## [1.1.0] - 2020-02-01",
            "## [Unreleased]",
            "there is an Unreleased section: give it the version and the date",
        ),
        ("[1.1.0]", "[1.2.0]", "the newest heading is ['1.2.0'], the version 1.1.0"),
        (" - 2020-01-01", "", "a version has no date"),
        ("2020-02-01", "2019-02-01", "the dates are not in descending order from today"),
        ("2020-02-01", "9999-02-01", "the dates are not in descending order from today"),
        ("[1.0.0]: https", "[1]: https", "[1.0.0] has no address"),
        (
            "### Added\n- A",
            "### News\n- A",
            "### News is not a section that check_papers.py knows",
        ),
        ("- A thing.", "", "there is no entry for 1.1.0"),
    ],
)
def test_a_changelog_without_the_version_or_its_date_is_refused(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str, fault: str | None
) -> None:
    faults = script("check_papers", monkeypatch).changelog_faults
    found = [*faults(CHANGELOG.replace(old, new, *([] if old != "2020-02-01" else [1])), "1.1.0")]
    assert (fault is None and not found) or fault in found


def test_links_to_files_and_headings_that_are_not_there_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    papers = script("check_papers", monkeypatch)
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# The `first` heading, of two\n\n```\n# no heading\n```\n", encoding="utf-8")
    own = PROJECT["urls"]["Repository"] + "/blob/main/"
    right = (
        "[a](other.md), [b](other.md#the-first-heading-of-two), [c](#here), `[d](nowhere.md)`\n"
        f"[e](https://example.org/x), [f]\n\n# Here\n\n[f]: {own}README.md\n"
    )
    page.write_text(right, encoding="utf-8")
    assert [*papers.link_faults(page, right)] == []
    wrong = f"[a](none.md), [b](other.md#no-heading), [c](#nowhere), [f]\n\n[f]: {own}NONE.md\n"
    page.write_text(wrong, encoding="utf-8")
    assert [*papers.link_faults(page, wrong)] == [
        "none.md: there is no such file",
        "other.md#no-heading: there is no such heading",
        "#nowhere: there is no such heading",
        f"{own}NONE.md: there is no such file",
    ]


@pytest.mark.skipif(os.name == "nt", reason="a script that says what a Python says")
def test_a_python_that_is_named_is_taken_and_what_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check = script("check", monkeypatch)
    newest = check.supported()[-1]
    named = tmp_path / "python"
    named.write_text(f"#!/bin/sh\necho {newest}\n", encoding="utf-8")
    named.chmod(0o755)
    assert check.python_of(newest, [str(named)]) == str(named)
    with pytest.raises(SystemExit, match=rf"nowhere: no Python {re.escape(check.supported()[0])}"):
        check.three_pythons([str(named), str(tmp_path / "nowhere")])


def test_too_few_pythons_are_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    check = script("check", monkeypatch)
    oldest, *others = check.supported()
    monkeypatch.setattr(
        check, "python_of", lambda name, named: name if name in others[:2] else None
    )
    with pytest.raises(SystemExit) as raised:
        check.three_pythons([])
    assert f"three Python versions are needed, including {oldest}" in str(raised.value)
    assert f"hint: install Python {oldest}, " in str(raised.value)
    assert "PYTHONS=" in str(raised.value)
    monkeypatch.setattr(check, "python_of", lambda name, named: name)
    names = check.supported()
    assert [name for name, _ in check.three_pythons([])] == [
        oldest,
        names[len(names) // 2],
        names[-1],
    ]


def test_the_version_stands_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    papers = script("check_papers", monkeypatch)
    assert [*papers.version_faults()] == []
    assert "the tag is v0.0.0" in next(papers.faults("v0.0.0"))
    monkeypatch.setattr(papers, "version", lambda: "0.0.0")
    assert len([*papers.version_faults()]) == 3  # two packages in one lock file, one in the other


@pytest.mark.parametrize(
    ("found", "wanted", "is_same"),
    [
        ("1.26.0", "1.26", True),
        ("2.4.0+cpu", "2.4", True),
        ("1.26.1", "1.26", False),
        ("10", "1", False),
    ],
)
def test_an_oldest_version_is_what_the_bound_says(
    monkeypatch: pytest.MonkeyPatch, found: str, wanted: str, is_same: bool
) -> None:
    assert script("oldest", monkeypatch).is_version(found, wanted) == is_same


def test_every_extra_without_an_environment_of_its_own_is_tested_with_its_oldest_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    envs = script("environments", monkeypatch)
    oldest = script("oldest", monkeypatch)
    assert {"hf", "gateway", "parquet", "testing"} <= set(envs.light_extras())
    assert "trl" in set(envs.extras_here()) - set(envs.light_extras())
    alone = set(PROJECT["optional-dependencies"]) - set(envs.extras_here())
    assert alone == set(oldest.ALONE), "constraints.txt lacks a pin of these"
    pins = (ROOT / "tests" / "eval_protocol" / "requirements.txt").read_text(encoding="utf-8")
    (bound,) = [r for r in oldest.extras_own("eval_protocol") if r.startswith("eval-protocol")]
    assert bound.replace(">=", "==") in pins.splitlines()
    for extra in envs.extras_here():
        for requirement in envs.requirements([extra]):
            assert oldest.bound(requirement) is not None, requirement


def test_the_crates_are_judged_for_the_platforms_of_the_wheels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deny = tomllib.loads((ROOT / "deny.toml").read_text(encoding="utf-8"))
    rust = script("rust", monkeypatch)
    assert sorted(deny["graph"]["targets"]) == rust.targets()
    assert f"({rust.oldest_rust()} or later)" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_what_is_pinned_is_moved() -> None:
    dependabot = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8"))
    moved = {
        (update["package-ecosystem"], folder)
        for update in dependabot["updates"]
        for folder in [*update.get("directories", []), update.get("directory")]
        if folder
    }
    assert moved == {
        ("github-actions", "/"),
        *(("cargo", folder) for folder in ("/", "/rust/fuzz")),
        *(("pip", folder) for folder in ("/", "/scripts/release", "/.github")),
    }
