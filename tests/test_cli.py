import json

import pytest

from abut.cli import main
from abut.demo.model import ASSETS
from abut.record import to_record
from abut.rollout import Rollout, StopReason, TurnRecord
from abut.show import load_tokenizer, render


def record(tokenizer, /, **changes):
    ids = tokenizer.encode("hi").tolist()
    rollout = Rollout("train-0-0", 0, prompt_ids=ids, stop_reason=StopReason.ENV_DONE)
    values = {
        "completion_ids": tokenizer.encode("a\x1b[2Jb").tolist(),
        "turns": [],
        "tokenizer": str(ASSETS),
    }
    values["env_mask"] = [1] * len(values["completion_ids"])
    values["provenance"] = [0] * len(ids) + [3] * len(values["completion_ids"])
    return {**to_record(rollout), **values, **changes}


@pytest.fixture
def tokenizer():
    return load_tokenizer(str(ASSETS))


@pytest.fixture
def records(tmp_path, tokenizer):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(record(tokenizer)) + "\n")
    return path


def test_show_marks_sampled_text_and_disarms_escape_sequences(records, capsys):
    assert main(["show", str(records)]) == 0
    out = capsys.readouterr().out
    assert "hi⟦a\\x1b[2Jb⟧" in out
    assert "\x1b" not in out


def test_show_colors_tokens_by_who_wrote_them(records, capsys):
    assert main(["show", str(records), "--color", "always"]) == 0
    assert "\x1b[1;32ma\\x1b[2Jb\x1b[0m" in capsys.readouterr().out


def test_show_prints_a_failed_rollout(tokenizer):
    failed = Rollout("r", 0, error="EnvError: dead", turns=[TurnRecord(0, 1, "stop", 0.1)])
    lines = list(render(to_record(failed), tokenizer, color=False))
    assert "error EnvError: dead" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--index", "1"], "no rollout 1, the file has 1"),
        (["--id", "x"], "no rollout 'x' among 1"),
    ],
)
def test_show_says_which_rollout_is_missing(records, capsys, arguments, message):
    assert main(["show", str(records), *arguments]) == 1
    assert capsys.readouterr().err == f"abut show: {records}: {message}\n"


def test_show_refuses_a_file_that_holds_no_records(tmp_path, capsys):
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    assert main(["show", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"abut show: {path}:1: not a record of a rollout\n"
        "hint: pass a .jsonl file that JsonlRecorder wrote\n"
    )


def test_show_needs_to_know_the_tokenizer(tmp_path, tokenizer, capsys):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(record(tokenizer, tokenizer=None)) + "\n")
    assert main(["show", str(path)]) == 1
    assert "hint: pass --tokenizer" in capsys.readouterr().err


def test_the_command_line_names_its_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("abut 0.")
