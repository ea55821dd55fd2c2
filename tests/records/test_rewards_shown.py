"""What reward functions gave is shown, wherever rewards are."""

from pathlib import Path
from typing import Any

import pytest

from abut.cli.__main__ import main
from abut.records.filter import parse_filter
from abut.records.read import read_records
from abut.records.record import score_record
from abut.records.recorder import JsonlRecorder
from abut.records.viewer.packed import row_of_list
from abut.trl.run_records import total_reward
from tests.kit.data.records import a_rollout


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """Two rollouts without a reward of their own, which two functions scored; one that is not."""
    path = tmp_path / "r.jsonl"
    recorder = JsonlRecorder(path)
    for k in range(3):
        recorder.write(a_rollout(f"r{k}", reward=None), step=k // 2, mode="train", run_id="run")
    for k in range(2):
        given = {"style": 0.5, "length": float(k)}
        total = total_reward(given, {"style": 2.0, "length": 1.0})
        recorder.write_scores([score_record("run", f"r{k}", given, total=total, advantage=0.0)])
    return path


def shown(capsys: Any, *arguments: str) -> list[list[str]]:
    assert main(["show", *arguments]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_list_shows_the_total_and_each_function(scored: Path, capsys: Any) -> None:
    head, *lines = shown(capsys, str(scored), "--list")
    assert head[3:6] == ["reward", "style", "length"]
    assert [line[3:6] for line in lines] == [["1", "0.5", "0"], ["2", "0.5", "1"], ["-"] * 3]


def test_each_step_shows_the_means(scored: Path, capsys: Any) -> None:
    head, *lines = shown(capsys, str(scored), "--steps")
    assert head[3:6] == ["reward", "style", "length"]
    assert [line[3:6] for line in lines] == [["1.5", "0.5", "0.5"], ["-"] * 3]


def test_the_viewer_and_the_filter_know_the_total(scored: Path) -> None:
    records = list(read_records(scored))
    rows = [row_of_list(record) for record in records]
    assert [row["total"] for row in rows] == [1.0, 2.0, None]
    assert rows[0]["rewards"] == {"style": 0.5, "length": 0.0}
    assert [r["rollout_id"] for r in filter(parse_filter("total>1"), records)] == ["r1"]


def test_without_scores_the_reward_is_the_environments(tmp_path: Path, capsys: Any) -> None:
    JsonlRecorder(tmp_path / "r.jsonl").write(a_rollout(reward=0.25))
    head, line = shown(capsys, str(tmp_path / "r.jsonl"), "--list")
    assert head[3:5] == ["reward", "turns"]
    assert line[3] == "0.25"


def test_a_function_that_gave_nothing_adds_nothing() -> None:
    assert total_reward({"a": None, "b": 2.0}, {"a": 1.0, "b": 0.5}) == 1.0
    assert total_reward({"a": None}, {}) is None
