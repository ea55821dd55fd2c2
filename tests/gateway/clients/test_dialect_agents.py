"""LangChain, pydantic-ai and OpenAI Agents in the dialects that they speak by themselves.

Each holds the conversation of `tests.kit.clients.conversation`, in one row, on several templates.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.kit.clients.conversation import FOLLOW, LOOKUP, QUESTION, SYSTEM, Heard, found
from tests.kit.clients.template_stage import on_each_template

ENVIRONMENTS = ("dialects",)


def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
    """Look up."""
    return found(a, b, k)


def in_responses(endpoint: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model=endpoint.model,
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        use_responses_api=True,
    )


def in_messages(endpoint: Any) -> Any:
    from langchain_anthropic import ChatAnthropic

    return ChatAnthropic(
        model=endpoint.model,
        base_url=endpoint.anthropic_url,
        api_key=endpoint.api_key,
        max_tokens=5000,
    )


def in_gemini(endpoint: Any) -> Any:
    from langchain_google_genai import ChatGoogleGenerativeAI

    return ChatGoogleGenerativeAI(
        model=endpoint.model, google_api_key=endpoint.api_key, base_url=endpoint.gemini_url
    )


async def langchain(
    model_at: Callable[..., Any], endpoint: Any, *, tools: bool, stream: bool
) -> None:
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

    model = model_at(endpoint).bind_tools([LOOKUP] if tools else [])
    messages: list[Any] = [SystemMessage(SYSTEM), HumanMessage(QUESTION)]
    for follows in (True, False):
        while True:
            if stream:
                first, *chunks = [chunk async for chunk in model.astream(messages)]
                answer = sum(chunks, first)
            else:
                answer = await model.ainvoke(messages)
            messages.append(answer)
            if not answer.tool_calls:
                break
            messages += [
                ToolMessage(found(**call["args"]), tool_call_id=call["id"], name=call["name"])
                for call in answer.tool_calls
            ]
        if follows:
            messages.append(HumanMessage(FOLLOW))


def responses_model(endpoint: Any) -> Any:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    return OpenAIResponsesModel(endpoint.model, provider=OpenAIProvider(openai_client=client))


def anthropic_model(endpoint: Any) -> Any:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(base_url=endpoint.anthropic_url, api_key=endpoint.api_key)
    return AnthropicModel(
        endpoint.model,
        provider=AnthropicProvider(anthropic_client=client),
        settings={"max_tokens": 5000},
    )


def google_model(endpoint: Any) -> Any:
    from google import genai
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    client = genai.Client(
        api_key=endpoint.api_key,
        http_options={"base_url": endpoint.gemini_url},
        vertexai=False,
    )
    return GoogleModel(endpoint.model, provider=GoogleProvider(client=client))


async def pydantic_ai(
    model_at: Callable[..., Any], endpoint: Any, *, tools: bool, stream: bool
) -> None:
    from pydantic_ai import Agent

    finder = Agent(model_at(endpoint), system_prompt=SYSTEM, tools=[lookup] if tools else [])
    history: Any = None
    for said in (QUESTION, FOLLOW):
        async with finder.iter(said, message_history=history) as run:
            async for node in run:
                if stream and Agent.is_model_request_node(node):
                    async with node.stream(run.ctx) as deltas:
                        assert [delta async for delta in deltas]
        assert run.result is not None
        history = run.result.all_messages()


async def openai_agents(endpoint: Any, *, tools: bool, stream: bool) -> None:
    from agents import Agent, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    finder: Any = Agent(
        "finder",
        instructions=SYSTEM,
        tools=[function_tool(lookup)] if tools else [],
        model=OpenAIResponsesModel(endpoint.model, client),
    )
    items: Any = QUESTION
    for _ in range(2):
        if stream:
            run: Any = Runner.run_streamed(finder, items)
            assert [event async for event in run.stream_events()]
        else:
            run = await Runner.run(finder, items)
        items = [*run.to_input_list(), {"role": "user", "content": FOLLOW}]


AGENTS: dict[str, Callable[..., Any]] = {
    "langchain-responses": partial(langchain, in_responses),
    "langchain-messages": partial(langchain, in_messages),
    "langchain-gemini": partial(langchain, in_gemini),
    "pydantic-ai-responses": partial(pydantic_ai, responses_model),
    "pydantic-ai-messages": partial(pydantic_ai, anthropic_model),
    "pydantic-ai-gemini": partial(pydantic_ai, google_model),
    "openai-agents": openai_agents,
}


@on_each_template
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_one_conversation(holds: Callable[..., Heard], name: str, stream: bool) -> None:
    one = holds(AGENTS[name], stream=stream)
    # pydantic-ai writes thinking as text for a model that it does not know to reason.
    assert {*one.rewrites} <= ({"thinking_as_text"} if name == "pydantic-ai-responses" else set())
