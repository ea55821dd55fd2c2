"""Strands Agents in three dialects, and Google's Agent Development Kit.

Strands asks for streams alone. It drops reasoning in Responses, and in Gemini it moves the
signature behind the text. ADK mixes both spellings of keys, and tells the agent its name.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.kit.clients.conversation import FOLLOW, QUESTION, SYSTEM, Heard, found
from tests.kit.clients.template_stage import on_each_template

ENVIRONMENTS = ("harnesses",)

Holds = Callable[..., Heard]


def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
    """Look up."""
    return found(a, b, k)


def in_messages(endpoint: Any) -> Any:
    from strands.models.anthropic import AnthropicModel

    client_args = {"base_url": endpoint.anthropic_url, "api_key": endpoint.api_key}
    return AnthropicModel(client_args=client_args, model_id=endpoint.model, max_tokens=5000)


def in_responses(endpoint: Any) -> Any:
    from strands.models.openai_responses import OpenAIResponsesModel

    client_args = {"base_url": endpoint.base_url, "api_key": endpoint.api_key}
    return OpenAIResponsesModel(client_args=client_args, model_id=endpoint.model)


def in_gemini(endpoint: Any) -> Any:
    from strands.models.gemini import GeminiModel

    http_options = {"base_url": endpoint.gemini_url}
    client_args = {"http_options": http_options, "api_key": endpoint.api_key}
    return GeminiModel(client_args=client_args, model_id=endpoint.model)


async def strands(
    model_at: Callable[..., Any], endpoint: Any, *, tools: bool, stream: bool
) -> None:
    from strands import Agent, tool

    finder = Agent(
        model=model_at(endpoint),
        system_prompt=SYSTEM,
        tools=[tool(lookup)] if tools else [],
        callback_handler=None,
    )
    for said in (QUESTION, FOLLOW):
        await finder.invoke_async(said)


async def adk(endpoint: Any, *, tools: bool, stream: bool) -> None:
    from google.adk.agents import Agent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.models import Gemini
    from google.adk.runners import InMemoryRunner
    from google.genai.types import Content, Part

    model = Gemini(
        model=endpoint.model,
        base_url=endpoint.gemini_url,
        client_kwargs={"api_key": endpoint.api_key},
    )
    finder = Agent(
        name="finder", model=model, static_instruction=SYSTEM, tools=[lookup] if tools else []
    )
    runner = InMemoryRunner(agent=finder, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="u")
    mode = StreamingMode.SSE if stream else StreamingMode.NONE
    for said in (QUESTION, FOLLOW):
        events = runner.run_async(
            user_id="u",
            session_id=session.id,
            new_message=Content(role="user", parts=[Part(text=said)]),
            run_config=RunConfig(streaming_mode=mode),
        )
        assert [event async for event in events]


@on_each_template
@pytest.mark.parametrize(
    "model_at", [in_messages, in_responses, in_gemini], ids=["messages", "responses", "gemini"]
)
def test_strands_is_one_conversation(holds: Holds, model_at: Callable[..., Any]) -> None:
    own_words = model_at is in_gemini  # results as lists of parts
    assert not holds(partial(strands, model_at), stream=True, own_words=own_words).rewrites


@on_each_template
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_adk_is_one_conversation(holds: Holds, stream: bool) -> None:
    assert not holds(adk, stream=stream, own_words=True).rewrites
