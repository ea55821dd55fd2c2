"""Claude Code and Codex with sub-agents, compacted and resumed, in real training.

Every token that they got is trained once, in whichever conversation it was sampled.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from abut import agent
from abut.agents import ClaudeCode, Codex, HarnessResult
from tests.kit.stage.agents import a_call

ENVIRONMENTS = ("coding",)

Train = Callable[..., Any]

# Claude Code's own prompt has 48,000 tokens of the demo's small vocabulary: minutes for each turn.
BRIEF = ["--tools", "Bash,Agent", "--system-prompt", "You report."]


def scored(result: HarnessResult) -> float:
    return float(result.exit_status == 0)


def by_claude(command: str) -> str:
    return a_call("Bash", description="a step", command=command)


def by_codex(command: str) -> str:
    return a_call("exec_command", cmd=command)


def to_claude(part: str) -> str:
    prompt = f"Report part {part}."
    return a_call("Agent", description=part, prompt=prompt, subagent_type="general-purpose")


def waits(prompt: str) -> str:
    """Codex names its sub-agents by random ids."""
    (name,) = {*re.findall(r"agent_id\W+([\w-]+)", prompt)}
    return a_call("multi_agent_v1__wait_agent", targets=[name], timeout_ms=600_000)


CLAUDE_DELEGATES = {
    "Report the whole.": (
        f"I delegate.\n{to_claude('one')}\n{to_claude('two')}",
        by_claude("echo whole"),
        "It is whole.",
    ),
    "Report part one.": (by_claude("echo one"), by_claude("echo again"), "One."),
    "Report part two.": (by_claude("echo two"), "Two."),
}
"""Both sub-agents work at the same time, and Claude Code is asked once more when each has ended."""

CODEX_DELEGATES = {
    "Report the whole.": (
        a_call("tool_search", query="spawn agent", limit=4),
        a_call("multi_agent_v1__spawn_agent", message="Report part one."),
        waits,
        "It is whole.",
    ),
    "Report part one.": (by_codex("echo one"), "One."),
}

CLAUDE_COMPACTS = (
    by_claude("seq 400"),
    by_claude("seq 400"),
    "<summary>Numbers were counted.</summary>",
    by_claude("echo end"),
    "It is whole.",
)
CODEX_COMPACTS = (
    by_codex("echo one"),
    by_codex("seq 1500"),
    "Numbers were counted.",
    by_codex("echo end"),
    "It is whole.",
)


# Claude Code does not say that it compacts; it does where it is told that the conversation is full.
FULL = {"completion_length": 2500}
EARLY = ["-c", "model_auto_compact_token_limit=21000"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("harness", "says", "causes", "limits"),
    [
        (partial(ClaudeCode, args=BRIEF), CLAUDE_DELEGATES, ["subagent", "subagent"], {}),
        (Codex, CODEX_DELEGATES, ["subagent"], {}),
        (partial(ClaudeCode, args=BRIEF), CLAUDE_COMPACTS, ["new", "rewritten"], FULL),
        (partial(Codex, args=EARLY), CODEX_COMPACTS, ["compaction", "rewritten"], {}),
    ],
    ids=["claude-code-delegates", "codex-delegates", "claude-code-compacts", "codex-compacts"],
)
def test_each_conversation_is_trained_and_says_why_it_began(
    trained: Train, harness: Any, says: Any, causes: list[str], limits: dict[str, int]
) -> None:
    played = trained(harness("Report the whole.", scored), says, **limits)
    played.check(rows=1 + len(causes))
    for rollout in played.batch.rollouts:
        assert rollout.reward == 1.0
        assert sorted(branch.cause for branch in rollout.branches) == causes


def runs(module: str, path: str, client: str, *command_lines: Sequence[str]) -> Any:
    """An agent that starts a program several times in one folder, by `Endpoint.env`."""

    @agent
    def solves(endpoint: Any) -> float:
        found = find_spec(module)
        assert found is not None
        assert found.origin is not None
        program = Path(found.origin).parent / path
        with tempfile.TemporaryDirectory() as home:
            environ = {"PATH": os.environ["PATH"], "HOME": home, **endpoint.env(client)}
            for words in command_lines:
                options = endpoint.codex_args() if client == "codex" else ()
                subprocess.run(
                    [program, *words[:-1], *options, words[-1]],
                    cwd=home,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=True,
                )
        return 1.0

    return solves


CLAUDE = ["-p", "--model=claude-sonnet-4-5", *BRIEF, "--allowedTools=Bash"]
CODEX = ["--model=gpt-5.5-codex", "--skip-git-repo-check"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("solver", "step"),
    [
        (
            runs(
                *("claude_agent_sdk", "_bundled/claude", "claude-code"),
                [*CLAUDE, "Report."],
                [*CLAUDE, "--continue", "And again."],
                [*CLAUDE, "--continue", "Once more."],
            ),
            by_claude,
        ),
        (
            runs(
                *("codex_cli_bin", "bin/codex", "codex"),
                ["exec", *CODEX, "Report."],
                ["exec", "resume", "--last", *CODEX, "And again."],
                ["exec", "resume", "--last", *CODEX, "Once more."],
            ),
            by_codex,
        ),
    ],
    ids=["claude-code", "codex"],
)
def test_a_resumed_conversation_is_the_one_that_it_was(
    trained: Train, solver: Any, step: Callable[[str], str]
) -> None:
    """The program ends in between, and reads its history from disk."""
    says = (
        f"<think>\nFirst.\n</think>\n\nI look.\n{step('echo one')}",
        "One.",
        step("echo two"),
        "<think>\nNow.\n</think>\n\nTwo.",
        "Three.",
    )
    played = trained(solver, says)
    played.check(rows=1)
    assert [len(rollout.turns) for rollout in played.batch.rollouts] == [len(says)] * 2
