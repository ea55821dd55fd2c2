"""Records: one line per rollout, and everything that is needed to replay it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abut.records.read import from_record, read_records
from abut.records.record import SCHEMA_VERSION, to_record
from abut.records.recorder import JsonlRecorder
from tests.kit.stage.rollouts import Stage, Talk, env, row


class Broken(Talk):
    def step(self, action: str) -> Any:
        raise ValueError("boom")


def written(path: Path, *rollouts: Any, **extra: Any) -> list[Any]:
    recorder = JsonlRecorder(path)
    for rollout in rollouts:
        recorder.write(rollout, **extra)
    return list(read_records(path))


def test_a_record_replays_the_rollout(stage: Stage, tmp_path: Path) -> None:
    rollout = stage.play(script=lambda r: [11, 12, *[505] * (r.turn % 2)]).one
    (record,) = written(tmp_path / "new" / "r.jsonl", rollout, step=3, mode="train")
    assert record["prompt_ids"] + record["completion_ids"] == row(rollout)
    assert record["env_mask"] == rollout.columns.env_mask.tolist()
    assert record["logprobs"] == pytest.approx(rollout.columns.logprobs.tolist(), abs=1e-6)
    assert len(record["provenance"]) == len(row(rollout))
    assert (record["step"], record["mode"], record["schema_version"]) == (
        3,
        "train",
        SCHEMA_VERSION,
    )
    for turn in record["turns"]:
        assert row(rollout)[turn["start"] : turn["start"] + 2] == [11, 12]
        assert turn["generate_s"] >= 0
        assert turn["env_s"] >= 0
    assert [turn["reward"] for turn in record["turns"]] == rollout.step_rewards
    assert len(record["seams"]) == len(rollout.seams)
    assert (record["reward"], record["stop_reason"], record["error"]) == (1.0, "env_done", None)
    assert record["messages"] == rollout.messages


def test_the_record_of_a_failed_rollout_has_its_error_and_prompt(
    stage: Stage, tmp_path: Path
) -> None:
    rollout = stage.play(Broken, Talk, retries=1).rollouts[0]
    (record,) = written(tmp_path / "r.jsonl", rollout)
    assert record["error"] == "EnvError: Broken.step raised ValueError: boom"
    assert (record["reward"], record["attempts"], record["stop_reason"]) == (None, 2, "error")
    assert record["prompt_ids"] == rollout.prompt_ids.tolist()
    assert record["completion_ids"] == record["env_mask"] == record["logprobs"] == []


def test_each_rollout_is_one_line_whatever_it_says(stage: Stage, tmp_path: Path) -> None:
    texts = ["a\nb\r\u2028\u0085\x00☃"]
    rollouts = stage.play(*[env(texts=texts)] * 3).rollouts
    records = written(tmp_path / "r.jsonl", *rollouts)
    assert [r["messages"][0]["content"] for r in records] == texts * 3
    assert (tmp_path / "r.jsonl").read_bytes().count(b"\n") == 3


def test_what_json_cannot_hold_is_kept_as_text(stage: Stage, tmp_path: Path) -> None:
    reply = [{"role": "user", "content": "hi", "score": np.float32(0.5), "path": Path("x")}]
    rollout = stage.play(env(texts=[reply])).one
    assert written(tmp_path / "r.jsonl", rollout)[0]["messages"][0]["path"] == "x"
    nan = float("nan")
    more = {"weight": nan, "path": [{"at": (1, -nan, None)}], (1, 2): True, "seen": {2.5}}
    rollout = stage.play(env(texts=[[{"role": "user", "content": "hi", **more}]])).one
    portable = to_record(rollout)
    assert portable["messages"][0].keys() == {"role", "content", "extra"}
    assert from_record(portable)["messages"][0] == {
        "role": "user",
        "content": "hi",
        "weight": "nan",
        "path": [{"at": [1, "nan", None]}],
        "(1, 2)": True,
        "seen": "{2.5}",
    }
    assert len(written(tmp_path / "r.jsonl", rollout)) == 2
    lone = stage.play(env(texts=["\ud800"]), Talk, retries=0).rollouts[0]
    assert len(written(tmp_path / "r.jsonl", lone)) == 3


def test_a_nan_is_a_defect_and_no_value(stage: Stage, tmp_path: Path) -> None:
    rollout = stage.play().one
    rollout.reward = float("nan")
    with pytest.raises(ValueError, match="Out of range float values"):
        JsonlRecorder(tmp_path / "r.jsonl").write(rollout)
    assert not (tmp_path / "r.jsonl").exists()


def test_a_record_is_plain_json(stage: Stage) -> None:
    record = to_record(stage.play().one)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["schema_version"] == SCHEMA_VERSION


@pytest.mark.parametrize("line", [b"{", b"[1]", b"{}", b"3", b"\xff\xfe"])
def test_what_is_no_record_is_named_with_its_line(
    stage: Stage, tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "r.jsonl"
    written(path, stage.play().one)
    path.write_bytes(path.read_bytes() + line + b"\n")
    records = read_records(path)
    assert next(records)["stop_reason"] == "env_done"
    with pytest.raises(ValueError, match="not a record") as raised:
        next(records)
    assert str(raised.value) == (
        f"{path}:2: not a record of a rollout\nhint: pass a .jsonl file written by "
        "JsonlRecorder, or a folder written by ParquetRecorder"
    )


def test_another_schema_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"schema_version": 4}\n')
    with pytest.raises(ValueError, match="schema_version") as raised:
        list(read_records(path))
    assert str(raised.value) == (
        f"{path}:1: this version of abut reads schema_version 1 to 3, not 4\nhint: pip install "
        "--upgrade abut"
    )
