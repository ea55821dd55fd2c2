"""AutoGen's `AssistantAgent`: it drops the thinking, and names the user."""

from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import FOLLOW, QUESTION, SYSTEM, Heard, found

ENVIRONMENTS = ("openai-3",)

Play = Callable[..., Heard]


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
def test_an_assistant_with_a_tool(heard: Play, streaming: bool) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        from autogen_agentchat.agents import AssistantAgent
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        async def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
            """Look up."""
            return found(a, b, k)

        info = {
            "vision": False,
            "function_calling": True,
            "json_output": True,
            "structured_output": True,
            "family": "unknown",
        }
        model = OpenAIChatCompletionClient(
            model=endpoint.model,
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            model_info=info,
        )
        assistant = AssistantAgent(
            "finder",
            model_client=model,
            tools=[lookup],
            system_message=SYSTEM,
            max_tool_iterations=6,
            model_client_stream=streaming,
        )
        await assistant.run(task=QUESTION)
        await assistant.run(task=FOLLOW)
        await model.close()
        return 1.0

    one = heard(solve)
    one.check_same_as_env()
    assert not one.rewrites
    assert all(request.stream == streaming for request in one.asked)
    assert {message.get("name") for message in one.asked[-1].messages} == {None, "user"}
