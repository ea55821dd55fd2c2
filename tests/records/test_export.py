"""Records become the data of other trainers."""

import json
from pathlib import Path
from typing import Any

import pytest

from abut.cli.__main__ import main
from abut.records.export import export
from abut.records.read import read_records
from abut.records.recorder import JsonlRecorder
from abut.rollout.rollout import Rollout, StopReason, TurnRecord
from tests.kit.data.records import a_rollout


@pytest.fixture
def records(tmp_path: Path) -> Path:
    recorder = JsonlRecorder(tmp_path / "r.jsonl")
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    for k in range(4):
        rollout = a_rollout(f"r{k}", messages=said, reward=k / 4)
        if k == 3:
            rollout.error, rollout.columns = "EnvError: dead", None
            rollout.attempt_tracebacks = ["/home/ann/env.py"]
        row = {"prompt": f"p{k // 2}", "answer": f"secret {k // 2}"}
        recorder.write(rollout, step=k, columns=row)
    return tmp_path / "r.jsonl"


def test_ids_have_the_mask_of_what_was_sampled(records: Path) -> None:
    rows = list(export(read_records(records), "ids"))
    assert rows == [{"input_ids": [1, 2, 3, 4, 5], "assistant_masks": [0, 0, 1, 0, 1]}] * 3


def test_messages_are_those_of_rollouts_that_did_not_fail(records: Path) -> None:
    rows = list(export(read_records(records), "messages"))
    assert [row["messages"][1]["content"] for row in rows] == ["yes"] * 3


def test_a_hosted_model_has_messages_and_no_ids(tmp_path: Path) -> None:
    """One that said nothing has neither, whatever its prompt holds."""
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    spoke = Rollout("spoke", 0, messages=said, turns=[TurnRecord(1, 3)])
    silent = Rollout("silent", 1, messages=said)
    recorder = JsonlRecorder(tmp_path / "r.jsonl")
    for rollout in (spoke, silent):
        rollout.stop_reason, rollout.reward = StopReason.ENV_DONE, 1.0
        recorder.write(rollout)
    records = list(read_records(tmp_path / "r.jsonl"))
    assert [row["messages"] for row in export(records, "messages")] == [said]
    assert list(export(records, "ids")) == []


def test_messages_have_the_tools_that_the_policy_saw(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    recorder = JsonlRecorder(tmp_path / "r.jsonl")
    recorder.write(a_rollout("with", tools=tools))
    recorder.write(a_rollout("without"))
    rows = list(export(read_records(tmp_path / "r.jsonl"), "messages"))
    assert [row["tools"] and json.loads(row["tools"]) for row in rows] == [tools, None]


def test_each_prompt_is_there_once_with_its_columns(records: Path) -> None:
    assert list(export(read_records(records), "prompts")) == [
        {"prompt": "p0", "answer": "secret 0"},
        {"prompt": "p1", "answer": "secret 1"},
    ]
    assert list(export(read_records(records), "prompts", without=["columns"])) == [
        {"prompt": "p0"},
        {"prompt": "p1"},
    ]


def test_what_must_not_leave_the_machine_stays(records: Path) -> None:
    whole = list(export(read_records(records), "records"))
    assert "/home/ann" in json.dumps(whole)
    assert "secret" in json.dumps(whole)
    handed_on = json.dumps(
        list(export(read_records(records), "records", without=["columns", "traceback"]))
    )
    assert "/home/ann" not in handed_on
    assert "secret" not in handed_on
    with pytest.raises(ValueError, match="records do not have a field 'colums'"):
        list(export(read_records(records), "records", without=["colums"]))


def test_the_command_writes_what_is_asked_for(records: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("pyarrow")
    assert main(["export", str(records), "--sft", "--where", "reward>=0.25"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    for name in ("out.jsonl", "out.parquet"):
        out = tmp_path / name
        assert main(["export", str(records), "--prompts", "-o", str(out)]) == 0
        assert capsys.readouterr().err == f"abut export: 2 rows in {out}\n"
        assert main(["export", str(records), "--prompts", "-o", str(out)]) == 1
        assert capsys.readouterr().err == (
            f"abut export: {out} already exists\nhint: name a new file\n"
        )
    assert main(["export", str(records), "--prompts", "-o", str(tmp_path / "out.csv")]) == 1
    assert "expected a name that ends in .jsonl or .parquet" in capsys.readouterr().err


@pytest.mark.slow
def test_sft_trainer_learns_what_was_sampled(
    records: Path, tmp_path: Path, tiny_model: Any, hf_tokenizer: Any
) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    rows = list(export(read_records(records), "ids"))
    args = trl.SFTConfig(
        str(tmp_path / "out"),
        max_steps=1,
        per_device_train_batch_size=2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = trl.SFTTrainer(
        tiny_model(),
        args=args,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=hf_tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"].tolist() == [row["input_ids"] for row in rows[:2]]
    masked = [
        [i if m else -100 for i, m in zip(row["input_ids"], row["assistant_masks"], strict=True)]
        for row in rows[:2]
    ]
    assert batch["labels"].tolist() == masked
    trainer.train()
