"""Inspect, with its provider for chat completions: `openai-api/NAME/MODEL`, and `vllm/MODEL`.

It writes null as `""`, a line break before a text that followed thinking, and arguments anew with
escapes. A call whose arguments are no JSON it would send back as `{}`; the gateway makes none.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import FOLLOW, QUESTION, SAYS, SYSTEM, Heard, found

ENVIRONMENTS = ("openai-3",)

Play = Callable[..., Heard]


async def evaluate(endpoint: Any, name: str, folder: Path, **options: Any) -> str:
    """One sample of a task with a tool and a second question; returns how it ended."""
    from inspect_ai import Task, eval_async
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ChatMessageUser, get_model
    from inspect_ai.solver import generate, solver, system_message, use_tools
    from inspect_ai.tool import tool

    @tool
    def lookup() -> Any:
        async def execute(a: str, b: float = 0.0, k: int = 0) -> str:
            """Look up.

            Args:
                a: what
                b: number
                k: integer
            """
            return found(a, b, k)

        return execute

    @solver
    def follow() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            state.messages.append(ChatMessageUser(content=FOLLOW))
            return await generate(state)

        return solve

    model = get_model(name, base_url=endpoint.base_url, api_key=endpoint.api_key, **options)
    solvers = [system_message(SYSTEM), use_tools(lookup()), generate(), follow()]
    task = Task(dataset=[Sample(input=QUESTION)], solver=solvers, message_limit=24)
    (log,) = await eval_async(task, model=model, log_dir=str(folder))
    return str(log.status)


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
def test_a_task_with_a_tool(heard: Play, tmp_path: Path, streaming: bool) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        options = {"stream": True} if streaming else {}
        ended = await evaluate(endpoint, "openai-api/abut/policy", tmp_path, **options)
        return float(ended == "success")

    one = heard(solve)
    one.check_same_as_env()
    assert not one.rewrites
    assert all(request.stream == streaming for request in one.asked)


def test_its_provider_for_vllm(heard: Play, tmp_path: Path) -> None:
    """It asks which models there are, first."""

    @agent
    async def solve(endpoint: Any) -> float:
        return float(await evaluate(endpoint, "vllm/policy", tmp_path) == "success")

    heard(solve).check_same_as_env()


def test_arguments_that_are_no_json_are_no_call(heard: Play, tmp_path: Path) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        ended = await evaluate(endpoint, "openai-api/abut/policy", tmp_path)
        return float(ended == "success")

    broken = 'Look:\n<tool_call>\n{"name": "lookup", "arguments": {"a": "x", "b": }}\n</tool_call>'
    one = heard(solve, [broken, SAYS[0], SAYS[4]])
    one.check()
    assert one.causes == [None]
    assert [len(request.messages) for request in one.asked] == [2, 4, 6]


def test_it_ends_well_at_the_end_of_the_budget(heard: Play, tmp_path: Path) -> None:
    """It takes the refusal for the last words of the model, and so does not raise."""

    @agent
    async def solve(endpoint: Any) -> float:
        ended = await evaluate(endpoint, "openai-api/abut/policy", tmp_path)
        return float(ended == "success")

    one = heard(solve, completion=200)
    one.check()
    assert 0 < len(one.rollout.turns) < 5
    assert one.rollout.branches == []
