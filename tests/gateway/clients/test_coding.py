"""Claude Code and Codex, the real programs: one conversation each, in a folder of its own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from abut.agents import ClaudeCode, Codex, HarnessResult
from tests.kit.checkout import EXAMPLES
from tests.kit.clients.conversation import Heard
from tests.kit.clients.template_stage import TEMPLATES_WITH_TOOLS
from tests.kit.stage.agents import a_call, harness_time_is_over

ENVIRONMENTS = ("coding",)

Play = Callable[..., Heard]

BROKEN = "def add(a, b):\n    return a - b\n"
RIGHT = BROKEN.replace("-", "+")


def fill(folder: Path) -> None:
    (folder / "add.py").write_text(BROKEN)


class Repaired:
    """A reward: whether the function adds."""

    def __call__(self, result: HarnessResult) -> float:
        self.result = result
        return float((result.cwd / "add.py").read_text() == RIGHT)

    def results(self) -> list[Any]:
        """What Claude Code's tools returned."""
        events = map(json.loads, self.result.transcript.splitlines())
        said = [e["message"]["content"] for e in events if e["type"] == "user"]
        return [block for content in said for block in content if block["type"] == "tool_result"]


def by_claude(**arguments: Any) -> str:
    return a_call("Bash", description="a step", **arguments)


# An unknown model gets system messages in the middle, which Qwen3.5's template refuses.
@pytest.mark.parametrize("stage", TEMPLATES_WITH_TOOLS, indirect=True)
@pytest.mark.parametrize("model", [None, "policy"], ids=["known", "unknown"])
def test_claude_code_repairs_a_function(
    heard: Play, monkeypatch: pytest.MonkeyPatch, model: str | None
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-trainer")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "sk-of-the-trainer")
    reward = Repaired()
    says = (
        "<think>\nFirst I look.\n</think>\n\n"
        + by_claude(text="I look.\n", command="cat add.py; env"),
        a_call("Read", file_path="add.py") + "\n" + by_claude(command="echo at the same time"),
        a_call(
            "Edit", file_path="add.py", old_string="a - b", new_string="a + b", replace_all=False
        ),
        a_call("Write", file_path="/abut-was-here.txt", content="no"),
        "It adds now.",
    )
    played = heard(ClaudeCode("Repair add.py.", reward, fill, model=model), says)
    played.check()
    rollout = played.rollout
    assert (rollout.error, rollout.reward, rollout.branches) == (None, 1.0, [])
    assert len(rollout.turns) == 5
    assert (reward.result.answer, reward.result.exit_status) == ("It adds now.", 0)
    first, read, beside, edited, denied = reward.results()
    assert BROKEN in first["content"]
    assert "sk-of-the-trainer" not in first["content"]
    assert "at the same time" in str([read, beside])
    assert not edited.get("is_error")
    assert "requested permissions" in denied["content"]  # it would be outside of the folder
    assert not Path("/abut-was-here.txt").exists()


@pytest.mark.parametrize("stage", TEMPLATES_WITH_TOOLS, indirect=True)
def test_codex_repairs_a_function(heard: Play) -> None:
    reward = Repaired()
    patch = "*** Begin Patch\n*** Update File: add.py\n@@\n-    return a - b\n+    return a + b\n"
    says = (
        "<think>\nFirst I look.\n</think>\n\n" + a_call("exec_command", cmd="cat add.py"),
        a_call("apply_patch", input=f"{patch}*** End Patch"),
        a_call("exec_command", cmd="cat add.py"),
        "It adds now.",
    )
    played = heard(Codex("Repair add.py.", reward, fill), says)
    played.check()
    rollout = played.rollout
    assert (rollout.error, rollout.reward, rollout.branches) == (None, 1.0, [])
    assert len(rollout.turns) == 4
    assert (reward.result.answer, reward.result.exit_status) == ("It adds now.", 0)


@pytest.mark.parametrize("harness", [ClaudeCode, Codex])
def test_one_that_is_told_that_there_is_no_more_ends_and_is_scored(
    heard: Play, harness: Any
) -> None:
    reward = Repaired()
    step = (
        by_claude(command="true") if harness is ClaudeCode else a_call("exec_command", cmd="true")
    )
    played = heard(harness("Repair add.py.", reward, fill, max_calls=2), (step,) * 9)
    rollout = played.rollout
    assert (rollout.error, rollout.reward, len(rollout.turns)) == (None, 0.0, 2)
    assert reward.result.exit_status == 1
    assert rollout.stop_reason == "max_calls"


def test_a_command_that_hangs_is_killed_with_its_harness(
    heard: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claude Code starts it in a session of its own."""
    reward = Repaired()
    folders: list[Path] = []

    def filled(folder: Path) -> None:
        fill(folder)
        folders.append(folder)

    harness_time_is_over(monkeypatch, lambda: (folders[0] / "hangs").exists())
    says = (by_claude(command="echo $$ > pid; touch hangs; sleep 1000"),)
    pids: list[int] = []

    def scored(result: HarnessResult) -> float:
        pids.append(int((result.cwd / "pid").read_text()))
        return reward(result)

    played = heard(ClaudeCode("Repair add.py.", scored, filled, timeout_s=600), says)
    assert (played.rollout.error, played.rollout.reward) == (None, 0.0)
    assert reward.result.exit_status is None
    assert not os.path.exists(f"/proc/{pids[0]}/fd/0")


@pytest.mark.parametrize("args", [[], ["--sandbox=danger-full-access"]], ids=["own", "none"])
def test_codex_keeps_its_commands_in_their_folder_unless_it_is_told_otherwise(
    heard: Play, tmp_path: Path, args: list[str]
) -> None:
    outside = tmp_path / "outside"
    command = f"touch inside; touch {outside}"
    seen: list[bool] = []

    def looks(result: HarnessResult) -> float:
        seen.extend([(result.cwd / "inside").exists(), outside.exists()])
        return 1.0

    played = heard(Codex("Look.", looks, args=args), (a_call("exec_command", cmd=command), "Done."))
    assert played.rollout.error is None
    assert seen == ([True, True] if args else [True, False])


def test_claude_code_compacts_a_full_conversation_and_goes_on(heard: Play) -> None:
    """It is told so in its own words; any other limit would only end it."""
    reward = Repaired()
    look = by_claude(command="seq 400")
    edit = a_call(
        "Edit", file_path="add.py", old_string="a - b", new_string="a + b", replace_all=False
    )
    says = (
        a_call("Read", file_path="add.py"),
        look,
        look,
        "<summary>add.py subtracts, and should add.</summary>",
        a_call("Read", file_path="add.py"),
        edit,
        "It adds now.",
    )
    played = heard(ClaudeCode("Repair add.py.", reward, fill), says, completion=2500)
    played.check()
    rollout = played.rollout
    assert (rollout.error, rollout.reward) == (None, 1.0)
    assert (reward.result.answer, reward.result.exit_status) == ("It adds now.", 0)
    # Claude Code does not say that it compacts: the history lacks what the summary stands for.
    assert {*played.causes} == {None, "rewritten", "new"}
    assert len(rollout.turns) + sum(len(branch.turns) for branch in rollout.branches) == len(says)


def test_calls_that_claude_code_writes_as_it_has_read_them_are_one_conversation(
    heard: Play,
) -> None:
    reward = Repaired()
    edit = {"file_path": "add.py", "old_string": "a - b"}
    says = (
        a_call("Read", file_path="add.py", offset="1"),
        a_call("Edit", **edit, new_string="a + b  "),
        by_claude(command="cat add.py", timeout="5000"),
        a_call("Write", file_path="b.py", content="c  \nd\t\n"),
        a_call("Write", file_path="b.md", content="c  \nd\t\n"),
        "It adds now.",
    )
    played = heard(ClaudeCode("Repair add.py.", reward, fill), says)
    played.check()
    assert (played.rollout.error, played.rollout.reward) == (None, 1.0)
    assert played.rollout.branches == []
    assert len(played.rollout.turns) == 6
    assert {*played.rewrites} == {"arguments_read"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", ["claude-code", "codex"])
def test_the_example_trains_on_every_sampled_token(program: str, tmp_path: Path) -> None:
    """Two steps; half of the repairs are wrong, and each row is replayed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "repair_cpu.py", "--program", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *steps, rows, replayed = done.stdout.splitlines()[-4:]
    for step in steps:
        found = re.fullmatch(r"mean reward 0\.50, gradient (\d.*)", step)
        assert found is not None, step
        assert float(found[1]) > 0
    counted = re.fullmatch(r"8 rows; (\d+) of (\d+) sampled tokens are trained", rows)
    assert counted is not None, rows
    assert counted[1] == counted[2]
    differs = re.fullmatch(r"in the replay, logprobs differ by at most (\S+) nats", replayed)
    assert differs is not None, replayed
    assert float(differs[1]) < 1e-5
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
