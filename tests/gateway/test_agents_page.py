"""The pages on agents are true: the tests they name exist, their tables are those of the code."""

import ast
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from abut.gateway.dialects.chat import SAMPLING, Chat
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.gateway import REWRITES
from abut.rollout.rollout import BranchCause
from tests.kit.training.example_run import blocks_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
AGENTS = "integrations/agents.md"


def rows(page: str, title: str, head: str = "") -> list[list[str]]:
    """Return the cells of the first table under a heading, or of the one with this head."""
    section = (DOCS / page).read_text(encoding="utf-8").partition(f" {title}\n")[2]
    section = section[section.index(f"| {head}") :] if head else section
    lines = section[section.index("|---") :].splitlines()[1:]
    table = lines[: next((k for k, line in enumerate(lines) if not line.startswith("|")), None)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def named(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_each_hard_case_names_a_test_that_there_is() -> None:
    there = {
        node.name
        for folder in ("gateway", "trl")
        for path in (ROOT / "tests" / folder).glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    told = [name for row in rows("background/evidence.md", "Agents") for name in named(row[2])]
    assert len(told) == len(rows("background/evidence.md", "Agents")) > 10
    assert set(told) <= there


def test_the_tables_are_those_of_the_code() -> None:
    assert (
        tuple(name for row in rows(AGENTS, "What clients do") for name in named(row[0])) == REWRITES
    )
    causes = tuple(name for row in rows(AGENTS, "Branches", "cause") for name in named(row[0]))
    assert causes == get_args(BranchCause)


HONOURED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [],
    "max_tokens": 1,
    "max_completion_tokens": 1,
    "stop": "x",
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "chat_template_kwargs": {},
    "parallel_tool_calls": True,
    "tool_choice": "none",
}
ASKED: dict[str, Any] = {
    "n": 2,
    "response_format": {"type": "json_object"},
    "logit_bias": {"1": 1},
    "top_logprobs": 2,
    "functions": [{}],
    "chat_template": "x",
    "echo": True,
    "prompt_logprobs": 1,
    "continue_final_message": True,
}


def test_each_field_is_on_its_line() -> None:
    honoured, trainers, free, refused, _ = rows("integrations/protocols.md", "Chat completions")
    message = {"role": "user", "content": "hi"}
    assert {*named(refused[1])} == {*ASKED}
    for name, value in ASKED.items():
        with pytest.raises(Refusal) as raised:
            Chat().read({"messages": [message], name: value})
        assert raised.value.param == name
    assert {*SAMPLING} - {*named(trainers[1])} == {
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    }
    assert {*named(trainers[1])} < {*SAMPLING}
    assert [*HONOURED] == re.findall(r"`(\w+)`", honoured[1])
    assert Chat().read({**HONOURED, "x": 1}).ignored == ["x"]
    asked = Chat().read({"messages": [message], "tool_choice": "required"})
    assert asked.unmet == ["tool_choice"]
    assert named(free[1])[0] == "tool_choice"


@pytest.mark.parametrize("page", ["agents.md", "protocols.md", "harnesses.md"])
def test_the_code_of_the_page_is_python(page: str) -> None:
    for block in blocks_of(page):
        compile(block, page, "exec")
