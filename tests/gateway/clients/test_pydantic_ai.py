"""pydantic-ai, with its model for chat completions; its model by default asks for responses.

It leaves an empty turn out of the history, and wraps arguments that are no JSON.
"""

from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import FOLLOW, QUESTION, REPLIES, SAYS, SYSTEM, Heard, found
from tests.kit.stage.agents import a_call

ENVIRONMENTS = ("openai-3",)

Play = Callable[..., Heard]


def made(endpoint: Any, **options: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=endpoint.base_url, api_key=endpoint.api_key)
    assistant = Agent(OpenAIChatModel(endpoint.model, provider=provider), **options)

    @assistant.tool_plain
    def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
        """Look up."""
        return found(a, b, k)

    return assistant


@pytest.mark.parametrize("where", ["instructions", "system_prompt"])
def test_an_agent_with_a_tool(heard: Play, where: str) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        assistant = made(endpoint, **{where: SYSTEM})
        first = await assistant.run(QUESTION)
        await assistant.run(FOLLOW, message_history=first.all_messages())
        return 1.0

    one = heard(solve)
    one.check_same_as_env()
    assert not one.rewrites


def test_streaming(heard: Play) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        assistant = made(endpoint, instructions=SYSTEM)
        async with assistant.run_stream(QUESTION) as first:
            await first.get_output()
            history = first.all_messages()
        async with assistant.run_stream(FOLLOW, message_history=history) as second:
            await second.get_output()
        return 1.0

    # A stream whose text comes before its call is taken for the answer: so this one has none.
    says = ["<think>\nI should look.\n</think>\n\n" + a_call(a="one", b=1.0), *SAYS[1:]]
    one = heard(solve, says)
    one.check_same_as_env()
    assert all(request.stream for request in one.asked)


def test_an_empty_turn_that_it_leaves_out_is_still_there(heard: Play) -> None:
    """It asks again after an empty turn, without that, and says why in a message of the system."""

    @agent
    async def solve(endpoint: Any) -> float:
        assistant = made(endpoint, instructions=SYSTEM)
        await assistant.run(QUESTION)
        return 1.0

    one = heard(solve, [SAYS[0], "<think>\nHm.\n</think>\n\n", SAYS[3]])
    one.check()
    assert one.rewrites == {"empty_turn_left_out": 1}
    (again,) = one.asked[2].messages[len(one.asked[1].messages) :]
    one.check_same_as_env(replies=[REPLIES[0], [again]])
