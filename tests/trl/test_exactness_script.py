"""`scripts.exactness` counts tokens right and tells exact rows from re-rendered ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.exactness import page
from scripts.exactness.calls import Call, Row

FIRST = Call([1, 2], [3, 4, 9], None)
SECOND = Call([1, 2, 3, 4, 9, 5], [6, 9], None)


def row(ids: list[int], trained: str) -> Row:
    return Row(ids, [one == "x" for one in trained], None, [FIRST, SECOND])


def test_an_appended_row_trains_exactly_what_was_sampled() -> None:
    exact = row([1, 2, 3, 4, 9, 5, 6, 9], "..xxx.xx")
    assert exact.counts().tolist() == [5, 0, 0, 0]


def test_a_rendered_row_counts_new_tokens_other_contexts_and_lost_ones() -> None:
    # 4 became 7, so 9 and the whole second turn stand behind another token than was seen.
    rendered = row([1, 2, 3, 7, 9, 5, 6, 9], "..xxx.xx")
    assert rendered.counts().tolist() == [5, 1, 3, 1]


def test_a_row_with_another_number_of_turns_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^1 runs of trained tokens, 2 calls$"):
        row([1, 2, 3, 4, 9], "..xxx")


def a_run(task: str, arm: str, seed: int) -> dict[str, Any]:
    probe = {"step": 0, "cosine": 0.5, "kl": 0.25, "logp_difference": 1.0, "ratio": 0.5}
    none = {**probe, "step": 8, "cosine": None}
    curve = [seed / 10] * 6
    counts = [[40, 4, 10, 12]] * 6
    return {
        "task": task,
        "arm": arm,
        "seed": seed,
        "reward": curve,
        "counts": counts,
        "probes": [probe, none],
    }


RUNS = [a_run(task, arm, k) for task in page.TITLES for arm in ("abut", "loop") for k in (1, 3)]


def test_the_tables_have_shares_of_all_steps_and_means_of_all_probes() -> None:
    line = "0.200 ± 0.141 | 10.0% | 25.0% | 25.0% | 0.2500 | 1.0000 | 0.500 | 0.500, 0.500 |"
    assert page.figures(RUNS).count(line) == 4
    assert page.drift_of(RUNS) == 0.1


def test_drawing_again_changes_nothing(tmp_path: Path) -> None:
    where = tmp_path / "docs" / "exactness_matters.md"
    page.write_page(where, RUNS)
    before = where.read_text(encoding="utf-8")
    where.write_text(f"# Title\n\n{before}\nMore.\n", encoding="utf-8")
    page.write_page(where, RUNS)
    assert where.read_text(encoding="utf-8") == f"# Title\n\n{before}\nMore.\n"
    assert json.loads(where.with_suffix(".json").read_text(encoding="utf-8")) == RUNS
    drawn = (where.parent / "exactness_matters_boxes.svg").read_text(encoding="utf-8")
    assert drawn == page.picture_of(RUNS, "boxes")


@pytest.mark.slow
def test_abuts_gradient_is_the_exact_one_and_that_of_the_loop_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    from scripts.exactness import boxes
    from scripts.exactness.tasks import TASKS
    from scripts.exactness.train import train

    # A shorter lesson teaches enough of the format for calls and thoughts.
    monkeypatch.setattr(boxes, "LESSONS", ((80, 4e-3, 0.7, True),))
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    task = TASKS["boxes"].with_steps(1)

    def measured(arm: str) -> tuple[float, list[int]]:
        run = train(task, arm, 0, tmp_path)
        (probe,), (counts,) = run["probes"], run["counts"]
        return probe["cosine"], counts

    cosine, (_, *others) = measured("abut")
    assert cosine >= 1 - 1e-6
    assert others == [0, 0, 0]
    cosine, (trained, unsampled, *_) = measured("loop")
    assert cosine < 1 - 1e-6
    assert unsampled / trained >= 0.05
