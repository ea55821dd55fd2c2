"""The Agents SDK of OpenAI on chat completions; by default it asks for responses.

It drops the thinking, and leaves an empty turn out of the history.
"""

from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import FOLLOW, QUESTION, REPLIES, SAYS, SYSTEM, Heard, found

ENVIRONMENTS = ("openai-3",)

Play = Callable[..., Heard]


def made(endpoint: Any, **options: Any) -> Any:
    from agents import Agent, OpenAIChatCompletionsModel, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    @function_tool(**options)
    def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
        """Look up."""
        return found(a, b, k)

    client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    model = OpenAIChatCompletionsModel(model=endpoint.model, openai_client=client)
    return Agent(name="finder", instructions=SYSTEM, tools=[lookup], model=model)


async def plain(assistant: Any, said: Any) -> Any:
    from agents import Runner

    return await Runner.run(assistant, said)


async def streamed(assistant: Any, said: Any) -> Any:
    from agents import Runner

    running = Runner.run_streamed(assistant, said)
    async for _ in running.stream_events():
        pass
    return running


@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
@pytest.mark.parametrize("run", [plain, streamed])
def test_an_agent_with_a_tool(heard: Play, run: Callable[..., Any], strict: bool) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        assistant = made(endpoint, strict_mode=strict)
        first = await run(assistant, QUESTION)
        await run(assistant, [*first.to_input_list(), {"role": "user", "content": FOLLOW}])
        return 1.0

    one = heard(solve)
    one.check_same_as_env()
    assert not one.rewrites
    assert all(request.stream == (run is streamed) for request in one.asked)


def test_an_empty_turn_that_it_leaves_out_is_still_there(heard: Play) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        assistant = made(endpoint)
        first = await plain(assistant, QUESTION)
        await plain(assistant, [*first.to_input_list(), {"role": "user", "content": FOLLOW}])
        return 1.0

    one = heard(solve, [SAYS[0], "<think>\nHm.\n</think>\n\n", SAYS[4]])
    one.check_same_as_env(replies=[REPLIES[0], REPLIES[3]])
    assert one.rewrites == {"empty_turn_left_out": 1}
