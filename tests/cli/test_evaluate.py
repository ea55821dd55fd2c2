"""`abut play` and `abut eval`, from the command line to their output."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abut.demo.model import ASSETS
from abut.records import read_records

pytest.importorskip("transformers", reason="the tokenizer is transformers'")
pytest.importorskip("aiohttp")

from tests.evaluation.test_hosted import Host, answer
from tests.kit.forks import python
from tests.kit.page_run import run_commands

MODULE = '''
import pathlib
import time
import abut

class Guess:
    """Pays 1 for the prompt's last word, in at most two turns."""

    def __init__(self):
        self.reward, self.alive, self.turns = 0.0, True, 0

    def reset(self, seed):
        self.word = seed.split()[-1]
        return self, "which word?"

    def step(self, action):
        if self.word == "broken":
            raise OSError("gone")
        if self.word == "slow":
            while not pathlib.Path("closed").exists():
                time.sleep(0.01)
            pathlib.Path("slow").touch()
            time.sleep(60)
        self.turns += 1
        self.reward = float(action == self.word)
        self.alive = not self.reward and self.turns < 2
        return self, "no"

    def close(self):
        pathlib.Path("closed").touch()

def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: one.
        b: the other.
    """
    return a + b

tools = abut.tool_env([add], reward=lambda messages: float("5" in messages[-1]["content"]))
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(MODULE)
    lines = [json.dumps({"prompt": f"the word is {word}"}) + "\n" for word in "abc"]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def host() -> Iterator[Host]:
    """Says "a" whatever it is asked."""
    served = Host()
    served.answers = [answer("a")]
    yield served
    served.close()


def abut_cli(folder: Path, *arguments: str, typed: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        python("-m", "abut.cli", *arguments),
        cwd=folder,
        input=typed,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def chat(host: Host) -> list[str]:
    return ["--chat", host.url, "--chat-model", "big"]


def test_a_person_plays(folder: Path) -> None:
    done = abut_cli(folder, "play", "own:Guess", "--prompt", "b", "--by-hand", typed="a\nb\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[user]\nwhich word?") == 1
    assert done.stdout.count("[assistant]\na\n") == 1
    assert done.stdout.endswith("---- reward 1, 2 turns, ended by env_done\n")


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal")
def test_on_a_terminal_a_typed_text_is_shown_once_and_tools_only_if_there_are_any(
    folder: Path,
) -> None:
    printed = run_commands("abut play own:Guess --prompt b", ["a", "b"], folder)
    assert printed == (
        "[user]\nwhich word?\n\nyou> a\n\n[user]\nno\n\nyou> b\n\n[user]\nno\n\n"
        "---- reward 1, 2 turns, ended by env_done\n"
    )
    call = 'add {"a": 2, "b": 3}'
    printed = run_commands("abut play own:tools --prompt '2 + 3?'", [call, "it is 5"], folder)
    assert f"you> {call}\n[assistant]\n-> {call}\n\n[tool]\n5\n" in printed


def test_a_person_calls_a_tool(folder: Path) -> None:
    typed = 'add {"a": 2, "b": 3}\nit is 5\n'
    done = abut_cli(folder, "play", "own:tools", "--prompt", "2 + 3?", "--by-hand", typed=typed)
    assert done.returncode == 0, done.stderr
    assert '[tool] {"name": "add"' in done.stdout
    assert '[assistant]\n-> add {"a": 2, "b": 3}\n\n[tool]\n5\n' in done.stdout
    assert "another conversation" not in done.stdout
    assert "---- reward 1," in done.stdout


def test_the_end_of_the_input_ends_the_run(folder: Path) -> None:
    done = abut_cli(folder, "play", "own:Guess", "--prompt", "b", "--by-hand", typed="a\n")
    assert done.returncode == 1
    assert "the input has ended" in done.stderr


def test_a_hosted_model_is_watched(folder: Path, host: Host) -> None:
    done = abut_cli(folder, "play", "own:Guess", "--rows", "rows.jsonl", "-n", "2", *chat(host))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("---- reward 1, 1 turns") == 1
    assert done.stdout.count("---- reward 0, 2 turns") == 1


def test_an_evaluation_is_printed_and_recorded(folder: Path, host: Host) -> None:
    arguments = ["eval", "own:Guess", "--rows", "rows.jsonl", "-k", "2", *chat(host)]
    done = abut_cli(folder, *arguments, "--record", "eval.jsonl")
    assert done.returncode == 0, done.stderr
    assert "reward      0.3333 ± 0.3333\n" in done.stdout
    assert "@2 0.3333" in done.stdout
    records = list(read_records(folder / "eval.jsonl"))
    assert len(records) == 6
    assert records[0]["usage"] == {"prompt_tokens": 10, "completion_tokens": 3}
    again = abut_cli(folder, *arguments, "--record", "eval.jsonl")
    assert again.returncode == 1
    assert "already exists\nhint: pass --resume" in again.stderr


def test_it_resumes_with_what_is_missing_or_failed(folder: Path, host: Host) -> None:
    lines = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    broken = json.dumps({"prompt": "the word is broken"}) + "\n"
    (folder / "rows.jsonl").write_text("".join([*lines[:2], broken]))
    arguments = ["eval", "own:Guess", "--rows", "rows.jsonl", *chat(host), "--json"]
    arguments += ["--record", "eval.jsonl", "--resume"]
    first = abut_cli(folder, *arguments)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["rewards"] == [[1.0], [0.0], [None]]
    asked = len(host.bodies)
    (folder / "rows.jsonl").write_text("".join([*lines[:2], broken, *lines[2:]]))
    second = abut_cli(folder, *arguments)
    assert "2 rollouts are already recorded, 2 to play" in second.stderr
    values = json.loads(second.stdout)
    assert values["rewards"] == [[1.0], [0.0], [None], [0.0]]
    assert values["mean_tokens"] == pytest.approx((3 + 6 + 3 + 6) / 4, abs=3)
    # The broken one fails before its first answer counts, and the new one takes two turns.
    assert [body["messages"][0]["content"] for body in host.bodies[asked:]].count("which word?") > 1


def test_two_evaluations_are_compared_by_their_rows(folder: Path, host: Host) -> None:
    """The other file has its rows in another order, and one that this one lacks."""
    arguments = ["eval", "own:Guess", *chat(host)]
    assert not abut_cli(
        folder, *arguments, "--rows", "rows.jsonl", "--record", "a.jsonl"
    ).returncode
    words = ["c", "a", "d"]
    lines = [json.dumps({"prompt": f"the word is {word}"}) + "\n" for word in words]
    (folder / "other.jsonl").write_text("".join(lines))
    host.answers = [answer("c")]
    done = abut_cli(folder, *arguments, "--rows", "other.jsonl", "--against", "a.jsonl")
    assert done.returncode == 0, done.stderr
    # c: 1 against 0; a: 0 against 1.
    assert "against     a.jsonl: +0 (95 % interval -1 to +1, 2 rows, 2 rows left out" in done.stdout
    (folder / "other.jsonl").write_text(lines[2])
    none = abut_cli(folder, *arguments, "--rows", "other.jsonl", "--against", "a.jsonl")
    assert none.returncode == 1
    assert "no row in common" in none.stderr


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to a process of one's own")
def test_ctrl_c_prints_what_there_is(folder: Path, host: Host) -> None:
    lines = [json.dumps({"prompt": f"the word is {word}"}) + "\n" for word in ("a", "slow")]
    (folder / "rows.jsonl").write_text("".join(lines))
    arguments = ["eval", "own:Guess", "--rows", "rows.jsonl", "--record", "eval.jsonl", *chat(host)]
    process = subprocess.Popen(
        python("-m", "abut.cli", *arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # By then the other one has ended, and its environment is closed.
    while not (folder / "slow").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted: 1 of 2 rollouts had ended" in err
    assert "rollouts    1 of 2 rows" in out
    assert "reward      1\n" in out


def test_several_models_give_one_table(folder: Path) -> None:
    pytest.importorskip("torch")
    from tests.kit.training.models import rank_model

    for name in ("one", "two"):
        tokenizer, model = rank_model()
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    done = abut_cli(
        folder,
        *("eval", "own:Guess", "--rows", "rows.jsonl", "--model", "one", "--model", "two"),
        *("--max-turn-tokens", "4", "--record", "eval.jsonl"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2].startswith("one")
    assert done.stdout.splitlines()[-1].startswith("two")
    assert (folder / "eval-one.jsonl").exists()
    assert (folder / "eval-two.jsonl").exists()


WRONG: list[tuple[list[str], str]] = [
    (["eval", "own:Guess", "--rows", "rows.jsonl"], "no policy to play"),
    (["play", "own:Guess"], "no policy to play"),
    (["eval", "own:Guess", "--model", "m"], "not have a dataset"),
    (["eval", "own:Gues", "--rows", "rows.jsonl", "--model", "m"], "has no 'Gues'"),
    (["eval", "own:Guess", "--vllm", "http://x"], "--vllm needs --tokenizer"),
    (["eval", "own:Guess", "--chat", "http://x/v1"], "--chat needs --chat-model"),
    (
        ["eval", "own:Guess", "--model", "m", "--vllm", "http://x", "--tokenizer", "t"],
        "--model and --vllm cannot be combined\nhint: name one policy",
    ),
    (["eval", "own:Guess", "--model", "m", "--resume"], "--resume needs --record"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_wrong_command_lines_are_named(
    folder: Path, monkeypatch: Any, capsys: Any, arguments: list[str], said: str
) -> None:
    from abut.cli.__main__ import main

    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    assert main(arguments) == 1
    assert said in capsys.readouterr().err
    sys.modules.pop("own", None)


def test_the_demos_tokenizer_is_where_hosted_models_find_it() -> None:
    """They have none of their own, and no network is needed."""
    assert (ASSETS / "tokenizer.json").is_file()
