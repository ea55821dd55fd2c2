import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from abut.cli.__main__ import main
from abut.demo.model import ASSETS
from abut.records.read import from_record
from abut.records.record import to_record
from abut.records.show import load_tokenizer, render
from abut.rollout.rollout import Rollout, StopReason, TurnRecord
from tests.kit.data.tokenizers_made import template, with_close


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


EVIL = "\x1b]0;owned\x07\x9b2J\u202e\nreward 1.0"


def test_show_disarms_every_field_that_it_prints(tmp_path, tokenizer, capsys):
    text = tokenizer.encode(EVIL).tolist()
    turn = {"start": EVIL, "end": EVIL, "finish_reason": EVIL, "reward": EVIL}
    evil = dict.fromkeys(("rollout_id", "step", "mode", "reward", "stop_reason"), EVIL)
    evil |= {"attempts": EVIL, "error": EVIL, "prompt_ids": text, "provenance": []}
    evil |= {"completion_ids": [], "env_mask": []}
    evil["turns"] = [turn | {"generate_s": 0.0, "env_s": 0.0}]
    evil["seams"] = [{"kind": EVIL, "exact": exact} for exact in (True, False)]
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(record(tokenizer, **evil)) + "\n")
    assert main(["show", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.count("owned") == 14
    assert [c for c in out if not c.isprintable() and c != "\n"] == []
    forged = [line for line in out.splitlines() if line.startswith("reward 1.0")]
    assert len(forged) == 1  # in the text of the rollout, which comes last


@pytest.mark.parametrize(
    ("changes", "status"), [({"schema_version": EVIL}, 1), ({"tokenizer": EVIL}, 0)]
)
def test_an_error_of_the_command_line_disarms_what_it_quotes(
    tmp_path, tokenizer, capsys, changes, status
):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(record(tokenizer, **changes)) + "\n")
    assert main(["show", str(path)]) == status
    err = capsys.readouterr().err
    assert "owned" in err
    assert [c for c in err if not c.isprintable() and c != "\n"] == []


def test_check_disarms_what_a_template_says(tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(ASSETS, folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('" + EVIL + "') }}")
    main(["check", str(folder)])
    out = capsys.readouterr().out
    assert "owned" in out
    assert [c for c in out if not c.isprintable() and c != "\n"] == []


@pytest.mark.parametrize("command", ["show", "check"])
def test_no_code_of_a_model_runs_and_nobody_is_asked(
    tmp_path, tokenizer, capsys, monkeypatch, command
):
    """A record names a folder whose tokenizer is code, and somebody presses `y`."""
    ran = tmp_path / "ran"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "mine.py").write_text(
        f"from pathlib import Path\nPath({str(ran)!r}).touch()\nclass Mine: ...\n"
    )
    code = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "mine.Mine"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(code))
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(record(tokenizer, tokenizer=str(folder))) + "\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    assert main([command, str(path if command == "show" else folder)]) == 2 * (command == "check")
    assert not ran.exists()
    told = "check: " if command == "check" else "show: tokens have no text: "
    assert capsys.readouterr().err == (
        f"abut {told}{folder}: its tokenizer is code that comes with the model\nhint: abut "
        "never runs code that comes with a model; if you trust this code, load the tokenizer "
        "yourself with trust_remote_code=True and pass that tokenizer\n"
    )


def test_show_colors_tokens_by_who_wrote_them(records, capsys):
    assert main(["show", str(records), "--color", "always"]) == 0
    assert "\x1b[1;32ma\\x1b[2Jb\x1b[0m" in capsys.readouterr().out


def test_show_prints_a_failed_rollout(tokenizer):
    failed = Rollout("r", 0, error="EnvError: dead", turns=[TurnRecord(0, 1, "stop", 0.1)])
    failed.messages = [
        {"role": "user", "content": "Say\x1b."},
        {"role": "assistant", "content": "a"},
    ]
    for known in (tokenizer, None):
        lines = list(render(from_record(to_record(failed)), known, color=False))
        assert "error EnvError: dead" in lines
        at = lines.index("[user]")
        assert lines[at : at + 4] == ["[user]", "Say\\x1b.", "[assistant]", "a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--index", "1"], "there are 1 rollouts, so there is no rollout 1"),
        (["--id", "x"], "none of the 1 rollouts has the id 'x'"),
    ],
)
def test_show_says_which_rollout_is_missing(records, capsys, arguments, message):
    assert main(["show", str(records), *arguments]) == 1
    assert capsys.readouterr().err == f"abut show: {message}\n"


@pytest.mark.parametrize("what", [[], ["--list"], ["--steps"]])
def test_show_prints_nothing_but_the_error_where_there_are_no_records(tmp_path, capsys, what):
    assert main(["show", str(tmp_path / "missing.jsonl"), *what]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "missing.jsonl" in err


def test_show_refuses_a_file_that_holds_no_records(tmp_path, capsys):
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    assert main(["show", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"abut show: {path}:1: not a record of a rollout\nhint: pass a .jsonl file written by "
        "JsonlRecorder, or a folder written by ParquetRecorder\n"
    )


def test_show_needs_no_tokenizer(tmp_path, tokenizer, capsys):
    path = tmp_path / "x.jsonl"
    said = [{"role": "user", "content": "hi", "extra": '{"name": "Ann"}'}]
    for source in (None, str(tmp_path / "nowhere")):
        path.write_text(json.dumps(record(tokenizer, tokenizer=source, messages=said)) + "\n")
        assert main(["show", str(path)]) == 0
        printed = capsys.readouterr()
        assert "[user]\nhi\n{'name': 'Ann'}\n" in printed.out
        ids = [*tokenizer.encode("hi"), *tokenizer.encode("a\x1b[2Jb")]
        assert printed.out.endswith(f"\nids {' '.join(map(str, ids))}\n")
        assert bool(printed.err) == (source is not None)
    assert main(["show", str(path), "--tokenizer", str(tmp_path / "nowhere")]) == 1


def test_show_lists_and_sums_up_what_is_asked_for(tmp_path, tokenizer, capsys):
    path = tmp_path / "x.jsonl"
    rows = [
        record(tokenizer, rollout_id=f"r{k}", step=k // 2, mode="train", group=k // 2, place=k % 2)
        | {"reward": [0.0, 1.0, None, 0.5][k], "error": [None, None, "Timeout\x1b: x", None][k]}
        for k in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["show", str(path), "--where", "reward>=0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["0", "train", "0.1", "1", "0", "8", "env_done", "r1"],
        ["1", "train", "1.1", "0.5", "0", "8", "env_done", "r3"],
    ]
    assert main(["show", str(path), "--list", "--where", "error:timeout"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("r2  Timeout\\x1b: x")
    assert main(["show", str(path), str(path), "--steps"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:6] for line in lines[1:]] == [
        ["0", "train", "4", "0.5", "0", "0.0"],
        ["1", "train", "4", "0.5", "2", "0.0"],
    ]
    assert main(["show", str(path), "--where", "step:1", "--index", "0"]) == 0
    assert capsys.readouterr().out.startswith("rollout r2  step 1")


def test_check_says_that_a_model_is_exact(capsys):
    assert main(["check", str(ASSETS), "--fuzz", "5", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"sampled <\|im_end\|> \| next user +barrier  yes, for every text\n", out)
    assert "fuzz: 5 of 5 conversations are the same, seed 3" in out
    assert out.endswith(
        "\nresult: exact at every seam that is judged\n"
        "This tokenizer and chat template are safe to train with.\n"
    )


def test_check_fails_where_a_seam_is_not_exact(tmp_path, capsys):
    tokenizer, file = tmp_path / "tokenizer.json", tmp_path / "chat_template.jinja"
    tokenizer.write_text(with_close(rstrip=True), encoding="utf-8")
    file.write_text(template(), encoding="utf-8")
    arguments = ["check", str(tokenizer), "--template", str(file), "--roles", "user"]
    assert main([*arguments, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["exact"] is False
    assert printed["problems"] == ["sampled <|im_end|> | next user: not exact in 111 of 111"]
    assert main(arguments) == 1
    assert "result: NOT EXACT\n  sampled <|im_end|> | next user: not exact in" in (
        capsys.readouterr().out
    )


def test_check_hands_variables_to_the_template(capsys):
    kwargs = ["--template-kwargs", '{"enable_thinking": false}', "--json"]
    assert main(["check", str(ASSETS), *kwargs]) == 0
    assert json.loads(capsys.readouterr().out)["exact"]


def test_check_says_with_another_status_that_it_could_not_check(tmp_path, capsys):
    path = tmp_path / "tokenizer.json"
    assert main(["check", str(path)]) == 2
    assert capsys.readouterr().err.startswith("abut check: [Errno 2] No such file or directory")
    path.write_text("{}")
    assert main(["check", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
    assert main(["check", str(ASSETS), "--template", str(tmp_path / "none.jinja")]) == 2
    assert "none.jinja" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(ASSETS), "--template-kwargs", "[]"])
    assert stopped.value.code == 2
    assert "argument --template-kwargs: '[]' is not a JSON object" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("tokenizer.json", '{"a": 1}', "{file}: not a tokenizer.json: missing field `model`"),
        ("tokenizer_config.json", "{", "{file} is not JSON: Expecting property name"),
        ("tokenizer_config.json", "[]", "{file} is not a JSON object\nhint: copy the file from"),
        ("generation_config.json", "{", "{file} is not JSON: Expecting property name"),
        ("generation_config.json", '{"eos_token_id": "x"}', "{file}: eos_token_id has 'x', which"),
        ("generation_config.json", '{"eos_token_id": [2, 512]}', "{file}: eos_token_id has 512, "),
        ("generation_config.json", '{"eos_token_id": true}', "{file}: eos_token_id has True, "),
    ],
)
def test_check_names_the_file_that_is_broken(tmp_path, capsys, file, text, message):
    folder = shutil.copytree(ASSETS, tmp_path / "model")
    (folder / file).write_text(text)
    assert main(["check", str(folder)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("abut check: " + message.format(file=folder / file))
    assert "\nhint: " in err


@pytest.mark.parametrize("name", ["", "./nope", "a/b/c"])
def test_check_says_that_there_is_no_such_folder(capsys, name):
    assert main(["check", name]) == 2
    assert capsys.readouterr().err == (
        f"abut check: {name!r} is neither a folder that exists nor the name of a model\nhint: "
        "pass a folder that exists, a tokenizer.json, or a name such as Qwen/Qwen3-8B\n"
    )


def test_check_says_that_a_folder_holds_no_tokenizer(tmp_path, capsys):
    hint = "hint: pass a folder that a fast tokenizer's save_pretrained has written\n"
    assert main(["check", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"abut check: {tmp_path}: the folder is empty\n{hint}"
    (tmp_path / "notes.txt").write_text("nothing")
    assert main(["check", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"abut check: {tmp_path}: transformers cannot load a tokenizer from ")
    assert err.endswith(hint)


@pytest.mark.parametrize("key", ["tokenize", "messages", "add_generation_prompt"])
def test_check_refuses_a_variable_that_abut_decides(capsys, key):
    assert main(["check", str(ASSETS), "--template-kwargs", json.dumps({key: False})]) == 2
    assert capsys.readouterr().err == (
        f"abut check: {key}= cannot be passed as a template variable, because abut sets it "
        "itself\nhint: pass only variables that the template reads, such as "
        "enable_thinking=False\n"
    )


def test_check_never_exits_with_a_verdict_where_it_has_none(capsys, monkeypatch):
    def broken(*args, **options):
        raise KeyError("added_tokens")

    monkeypatch.setattr("abut.audit.verdict.audit", broken)
    assert main(["check", str(ASSETS)]) == 2
    assert capsys.readouterr().err == "abut check: KeyError: 'added_tokens'\n"


@pytest.mark.parametrize(("rstrip", "status"), [(False, 0), (True, 1)])
def test_a_verdict_that_nobody_reads_to_its_end_is_the_exit_status_all_the_same(
    tmp_path, rstrip, status
):
    tokenizer, file = tmp_path / "tokenizer.json", tmp_path / "chat_template.jinja"
    tokenizer.write_text(with_close(rstrip=rstrip), encoding="utf-8")
    file.write_text(template(), encoding="utf-8")
    read, write = os.pipe()
    os.close(read)  # as `abut check | head` once head has gone
    done = subprocess.run(
        [sys.executable, "-m", "abut.cli", "check", str(tokenizer), "--template", str(file)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (status, "")


def test_check_takes_roles_before_the_model(capsys):
    assert main(["check", "--roles", "user", str(ASSETS)]) == 0
    assert "next tool" not in capsys.readouterr().out
    assert main(["check", "--roles", "user,tool", str(ASSETS)]) == 0
    assert "next tool" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main(["check", "--roles", "usr", str(ASSETS)])
    assert stopped.value.code == 2
    assert "argument --roles: 'usr': expected user, tool or user,tool" in capsys.readouterr().err


def test_check_does_not_call_a_template_exact_of_which_no_seam_was_judged(tmp_path, capsys):
    file = tmp_path / "chat_template.jinja"
    no_tools = "{% if messages[-1].role == 'tool' %}{{ raise_exception('no') }}{% endif %}"
    file.write_text(no_tools + template(), encoding="utf-8")
    arguments = ["check", str(ASSETS), "--template", str(file), "--roles"]
    assert main([*arguments, "user,tool"]) == 0
    capsys.readouterr()
    assert main([*arguments, "tool"]) == 1
    assert capsys.readouterr().out.endswith(
        "result: NOT EXACT\n  no seam was judged, because the template does not accept such "
        "messages\nNot safe to train with: no seam was judged, because the template does not "
        "accept such messages.\n"
    )


def test_check_loads_a_tokenizer_without_torch():
    code = (
        "import sys; from abut.cli.__main__ import main; "
        "sys.argv = ['abut', 'check', sys.argv[1]]; "
        "status = main(); print(sorted({'torch', 'transformers'} & {n for n in sys.modules "
        "if sys.modules[n]}), status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ASSETS)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.stdout.splitlines()[-1] == "['transformers'] 0"
    assert done.stderr == ""


def test_the_command_line_names_its_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("abut 0.")
