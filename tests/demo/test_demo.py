import dataclasses
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="abut demo needs the extra trl")

from abut.cli.__main__ import main
from abut.demo import model
from abut.demo.model import DemoRecipe
from abut.demo.run import Summary, load_env
from abut.records.read import read_records
from tests.kit.forks import python

LAST_REWARD = (0.7, 1.0)
"""The range of the mean reward of the last ten steps, whatever the seed and the machine."""

QUICKSTART = Path(__file__).parents[2] / "docs" / "start" / "quickstart.md"
ENV = """
class Echo:
    def __init__(self):
        self.reward, self.alive = 0.0, True

    def reset(self, seed):
        return self, "say a"

    def step(self, action):
        self.reward, self.alive = action.count("a") / 8, False
        return self, ""
"""


def abut_demo(*arguments, cwd):
    command = python("-m", "abut.cli", "demo", "--json", *arguments)
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
def test_the_reward_really_rises(tmp_path):
    summary, progress = abut_demo(cwd=tmp_path)
    (page,) = tmp_path.glob("runs/demo-*.html")
    assert f"page            {page.relative_to(tmp_path)}  (open this file in a browser" in progress
    assert page.stat().st_size < 3_000_000
    lowest, highest = LAST_REWARD
    assert summary["first_mean_reward"] < 0.01
    assert lowest <= summary["last_mean_reward"] <= highest
    assert summary["seconds"] < 240


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="$BROWSER is of Unix")
def test_the_demo_opens_its_page(tmp_path, monkeypatch):
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{opened}"\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    abut_demo("--steps", "1", "--batch", "8", "--records", "r.jsonl", "--view", cwd=tmp_path)
    assert opened.read_text() == (tmp_path / "r.html").as_uri()


def test_all_that_say_where_the_reward_ends_say_the_same():
    lowest, highest = LAST_REWARD
    page = " ".join(QUICKSTART.read_text(encoding="utf-8").split())
    assert f"rises from 0.00 to between {lowest} and {highest}" in page
    assert f"ends between {lowest} and {highest}" in str(model.__doc__)


@pytest.mark.slow
def test_the_demo_runs_any_model_on_any_environment(tmp_path):
    from abut.demo.model import build_demo_model, load_demo_tokenizer

    tokenizer = load_demo_tokenizer()
    build_demo_model(tokenizer, DemoRecipe()).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "my_env.py").write_text(ENV)
    summary, progress = abut_demo(
        "--model", "model", "--env", "my_env:Echo", "--steps", "2", "--batch", "8",
        "--max-turn-tokens", "8", "--records", "out.jsonl", cwd=tmp_path,
    )  # fmt: skip
    assert (summary["steps"], summary["rollouts"], summary["turns_per_rollout"]) == (2, 16, 1.0)
    assert "step    2  reward" in progress
    records = list(read_records(tmp_path / "out.jsonl"))
    assert all(record["messages"][0]["content"] == "say a" for record in records)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_env", "'my_env': expected MODULE:NAME, for example my_env:MyEnv"),
        (
            "no_such_module:X",
            "'no_such_module:X': the module 'no_such_module' cannot be found\nhint: run abut in "
            "the folder of my_env.py, or install its package",
        ),
        ("abut.envs:X", "'abut.envs:X': module 'abut.envs' has no 'X'"),
    ],
)
def test_an_environment_that_is_not_there_is_named(name, message):
    with pytest.raises(ValueError, match=f"'{name}'") as raised:
        load_env(name)
    assert str(raised.value) == message


def test_records_are_never_overwritten(tmp_path, capsys):
    path = tmp_path / "old.jsonl"
    path.write_text("kept")
    assert main(["demo", "--records", str(path)]) == 1
    assert capsys.readouterr().err.endswith(
        f"--records {path}: the file exists\nhint: name another file, or remove this one\n"
    )
    assert path.read_text() == "kept"


def test_the_summary_names_what_it_measured():
    summary = Summary(0.1, 0.9, 120, 60.0, 8, 1, 3.0, 0.25, {"barrier": 4}, 0, "runs/x.jsonl")
    assert summary.lines()[0] == (
        "reward          0.100 (first 10 steps) -> 0.900 (last 10 of 120)"
    )
    few = dataclasses.replace(summary, steps=6)
    assert few.lines()[0] == "reward          0.100 (first 6 steps) -> 0.900 (last 6 of 6)"


@pytest.mark.slow
def test_where_stderr_is_no_terminal_each_tenth_step_is_a_line_and_no_bar_moves(tmp_path):
    """With a model that is loaded, too, which transformers shows a bar for."""
    from abut.demo.model import build_demo_model, load_demo_tokenizer

    tokenizer = load_demo_tokenizer()
    build_demo_model(tokenizer, DemoRecipe()).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    _, progress = abut_demo(
        "--model", "model", "--env", "abut.envs:EchoEnv", "--steps", "12", "--batch", "8",
        "--max-turn-tokens", "1", "--max-turns", "1", cwd=tmp_path,
    )  # fmt: skip
    steps = [line.split()[1] for line in progress.splitlines() if line.startswith("step ")]
    assert steps == ["10", "12"]
    assert "\r" not in progress
    assert "it/s" not in progress
    assert "step/s" not in progress


@pytest.mark.slow
def test_on_a_terminal_each_step_is_a_line_over_a_bar(tmp_path):
    ours, theirs = pytest.importorskip("pty").openpty()
    pytest.importorskip("termios").tcsetwinsize(theirs, (24, 80))
    command = python("-m", "abut.cli", "demo", "--steps", "2", "--batch", "8")
    done = subprocess.run(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=400
    )
    assert done.returncode == 0
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the other end is closed, and all is read
        while piece := os.read(ours, 1 << 16):
            shown += piece
    assert b"2/2 [" in shown
    assert [line.split()[1] for line in done.stdout.splitlines()[:2]] == ["1", "2"]
