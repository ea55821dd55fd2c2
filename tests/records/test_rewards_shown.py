"""What reward functions gave is shown, wherever rewards are."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from abut.cli.__main__ import main
from abut.records.filter import parse_filter
from abut.records.read import read_records
from abut.records.recorder import FlushingRecorder, JsonlRecorder, recorder_at
from abut.records.scores import advantages_of, score_record, total_of
from abut.records.viewer.packed import Chunk, Pieces, row_of_list
from abut.rollout.rollout import Branch, TurnRecord
from abut.trl.rewards import total_reward
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
        total = total_reward(given.values(), [2.0, 1.0])
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
    assert total_reward([None, 2.0], [1.0, 0.5]) == 1.0
    assert total_reward([None], [1.0]) is None


ROWS = [
    {"row": 0, "branch": None, "weight": 1.5, "advantages": [0.75, -0.5]},
    {"row": 9, "branch": 1, "weight": 0.5, "advantages": [2.0]},
]


@pytest.fixture(params=["r.jsonl", "r"])
def credited(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A rollout of two turns and two branches; its row and the second branch were trained."""
    path: Path = tmp_path / request.param
    recorder = recorder_at(path)
    turns = [TurnRecord(2, 3, "stop"), TurnRecord(4, 5, "stop")]
    branches = [Branch(a_rollout().columns), Branch(a_rollout().columns)]
    recorder.write(a_rollout("r0", turns=turns, branches=branches), run_id="run")
    if isinstance(recorder, FlushingRecorder):
        recorder.flush()
    given = {"env_reward": 1.0}
    scores = score_record("run", "r0", given, total=1.0, advantage=0.25, rows=ROWS, padding_rows=2)
    recorder.write_scores([scores])
    return path


def test_advantages_of_turns_come_back_with_their_rows(credited: Path) -> None:
    (record,) = read_records(credited)
    assert record["rows"] == ROWS
    assert record["padding_rows"] == 2
    assert [list(advantages_of(record, branch)) for branch in (None, 0, 1)] == [
        [0.75, -0.5],
        [],
        [2.0],
    ]


def test_each_turn_shows_its_advantage(credited: Path, capsys: Any) -> None:
    assert main(["show", str(credited)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("turn ")]
    assert [line.rpartition("  ")[2] for line in lines] == ["advantage 0.75", "advantage -0.5"]


def test_the_rows_that_were_trained_are_shown(credited: Path, capsys: Any) -> None:
    assert main(["show", str(credited)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("trained ")]
    rows = "row 0 (weight 1.5), row 9 of branch 1 (weight 0.5)"
    assert line == f"trained {rows}  the batch has 2 rows of padding"


def test_rows_of_before_have_no_numbers(credited: Path, capsys: Any) -> None:
    path = credited.with_suffix(".scores.jsonl")
    if not path.exists():
        pytest.skip("Parquet")
    scores = json.loads(path.read_text())
    del scores["padding_rows"]
    for row in scores["rows"]:
        del row["row"]
    path.write_text(json.dumps(scores) + "\n")
    assert main(["show", str(credited)]) == 0
    said = capsys.readouterr().out
    assert "trained row (weight 1.5), row of branch 1 (weight 0.5)\n" in said


def test_the_page_has_the_advantages_of_the_row_and_of_branches(credited: Path) -> None:
    (record,) = read_records(credited)
    chunk = Chunk()
    chunk.add(record, Pieces(None, None))
    facts = unpacked(chunk.packed())
    (rollout,) = facts["rollouts"]
    assert rollout["advantages"] == [0.75, -0.5]
    assert [branch["advantages"] for branch in rollout["branches"]] == [[], [2.0]]


def unpacked(packed: bytes) -> Any:
    raw = gzip.decompress(packed)
    return json.loads(raw[4 : 4 + int.from_bytes(raw[:4], "little")])


def test_scores_of_before_have_no_rows(scored: Path, capsys: Any) -> None:
    path = scored.with_suffix(".scores.jsonl")
    lines = path.read_text().splitlines()
    old = [{k: v for k, v in json.loads(line).items() if k != "rows"} for line in lines]
    path.write_text("".join(json.dumps(row) + "\n" for row in old))
    records = list(read_records(scored))
    assert [record["rows"] for record in records] == [None] * 3
    assert [record["advantage"] for record in records] == [0.0, 0.0, None]
    assert main(["show", str(scored), "--index", "0"]) == 0
    assert "turn 0" in (said := capsys.readouterr().out)
    assert "advantage" not in said.partition("turn 0")[2]


def test_a_record_without_the_column_has_no_reward_to_show() -> None:
    assert total_of({"rollout_id": "r0"}) is None
    assert total_of({"reward": 0.5, "rewards": None}) == 0.5
    assert total_of({"reward": 0.5, "rewards": {"length": 1.0}, "total": 2.0}) == 2.0
