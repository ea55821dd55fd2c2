"""The page says what the runs measured."""

import json

import pytest

from scripts.exactness import page
from tests.kit.checkout import ROOT

PAGE = ROOT / page.PAGE
TEXT = PAGE.read_text(encoding="utf-8")
RUNS = json.loads(PAGE.with_suffix(".json").read_text(encoding="utf-8"))


def test_the_tables_are_those_of_the_committed_runs() -> None:
    _, _, rest = TEXT.partition(page.BEGIN)
    tables, _, _ = rest.partition(page.END)
    assert tables.strip() == page.figures(RUNS).strip()


@pytest.mark.parametrize("task", page.TITLES)
def test_the_curves_are_those_of_the_committed_runs(task: str) -> None:
    drawn = PAGE.with_name(f"{PAGE.stem}_{task}.svg")
    assert drawn.read_text(encoding="utf-8") == page.picture_of(RUNS, task)
    assert f"]({drawn.name})" in TEXT


def test_each_arm_of_a_task_has_the_same_five_seeds_and_steps() -> None:
    for task, arms in (("copy", 3), ("boxes", 4)):
        runs = [run for run in RUNS if run["task"] == task]
        assert {run["arm"] for run in runs} == set(list(page.NAMES)[:arms])
        assert sorted(run["seed"] for run in runs) == sorted([*range(5)] * arms)
        assert len({len(run["reward"]) for run in runs}) == 1


def test_the_control_holds_in_every_committed_run() -> None:
    cosines = [
        probe["cosine"]
        for run in RUNS
        if run["arm"] == "abut"
        for probe in run["probes"]
        if probe["cosine"] is not None
    ]
    assert len(cosines) >= 20
    assert min(cosines) >= 1 - 1e-6


def test_the_drift_of_task_2_is_what_was_asked_for() -> None:
    drift = page.drift_of(RUNS)
    assert drift >= 0.05
    assert f"it had {drift:.1%}".replace("%", " %") in " ".join(TEXT.split())


def test_the_page_says_which_arms_learned() -> None:
    rewards = {
        (task, arm): page.row_of([r for r in RUNS if (r["task"], r["arm"]) == (task, arm)])
        for task in page.TITLES
        for arm in page.NAMES
        if (task, arm) != ("copy", "trl")
    }
    for task in page.TITLES:
        assert rewards[task, "loop"]["reward"] < rewards[task, "abut"]["reward"] - 0.1
        assert rewards[task, "proxy"]["unsampled"] == 0 < rewards[task, "proxy"]["elsewhere"]
        for arm in set(page.NAMES) - {"loop"}:
            if (task, arm) in rewards:
                assert abs(rewards[task, arm]["reward"] - rewards[task, "abut"]["reward"]) < 0.1
    assert rewards["boxes", "loop"]["lowest"] < 0
    assert rewards["boxes", "proxy"]["kl"] < 0.01 < 1 - rewards["boxes", "proxy"]["cosine"]
    assert rewards["boxes", "trl"]["lowest"] >= 1 - 1e-6
    assert rewards["boxes", "loop"]["ratio"] < 0.1
