"""LangChain's `ChatOpenAI` in agents that call tools.

It sends an empty text beside calls as null, drops the thinking, and writes arguments anew: keys in
their order, numbers as Python does.
"""

from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from abut.gateway.server.gateway import Gateway
from tests.kit.clients.conversation import FOLLOW, QUESTION, SAYS, SYSTEM, Heard, found

ENVIRONMENTS = ("openai-3",)

Play = Callable[..., Heard]


def react(model: Any, tools: list[Any], **options: Any) -> Any:
    from langgraph.prebuilt import create_react_agent

    return create_react_agent(model, tools, prompt=SYSTEM, **options)


def langchain(model: Any, tools: list[Any], **options: Any) -> Any:
    from langchain.agents import create_agent

    return create_agent(model, tools, system_prompt=SYSTEM, **options)


def made(make: Callable[..., Any], endpoint: Any, streaming: bool = False, **options: Any) -> Any:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
        """Look up."""
        return found(a, b, k)

    model = ChatOpenAI(
        model=endpoint.model,
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        streaming=streaming,
    )
    return make(model, [lookup], **options)


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
@pytest.mark.parametrize("make", [react, langchain])
def test_an_agent_with_a_tool(heard: Play, make: Callable[..., Any], streaming: bool) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        graph = made(make, endpoint, streaming)
        said = graph.invoke({"messages": [("user", QUESTION)]})["messages"]
        graph.invoke({"messages": [*said, ("user", FOLLOW)]})
        return 1.0

    one = heard(solve)
    one.check_same_as_env()
    assert not one.rewrites
    assert all(request.stream == streaming for request in one.asked)


def test_an_async_agent(heard: Play) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        graph = made(langchain, endpoint)
        said = (await graph.ainvoke({"messages": [("user", QUESTION)]}))["messages"]
        await graph.ainvoke({"messages": [*said, ("user", FOLLOW)]})
        return 1.0

    heard(solve).check_same_as_env()


def test_a_typed_answer_of_langgraph_is_asked_for_anew(heard: Play) -> None:
    """A request of its own, without tools and system prompt: another root, whatever the rule."""

    @agent
    def solve(endpoint: Any) -> float:
        from pydantic import BaseModel

        class Answer(BaseModel):
            answer: str

        graph = made(react, endpoint, response_format=Answer)
        graph.invoke({"messages": [("user", QUESTION)]})
        return 1.0

    one = heard(solve, [*SAYS[:4], '{"answer": "42"}'], Gateway(unenforced="accept"))
    one.check()
    assert one.causes == [None, "tools"]
    assert len(one.rollout.turns) == 4  # the row is the conversation, not the typed answer
    assert one.asked[-1].tools is None
    assert one.asked[-1].unmet == ["response_format"]
