"""Clients of Gemini generateContent: google-genai, whose types all answers have, and two agents."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import FOLLOW, LOOKUP, QUESTION, SAYS, SYSTEM, Heard, found

ENVIRONMENTS = ("dialects",)

Play = Callable[..., Heard]
DECLARED = {
    "name": "lookup",
    "description": "Look up.",
    "parametersJsonSchema": LOOKUP["function"]["parameters"],  # type: ignore[index]
}


def address(endpoint: Any) -> str:
    return str(endpoint.base_url).removesuffix("/v1")


def client_of(endpoint: Any) -> Any:
    from google import genai

    return genai.Client(
        api_key=endpoint.api_key, http_options={"base_url": address(endpoint)}, vertexai=False
    )


def plain(client: Any, **options: Any) -> list[Any]:
    return [client.models.generate_content(**options)]


def streamed(client: Any, **options: Any) -> list[Any]:
    return list(client.models.generate_content_stream(**options))


@pytest.mark.parametrize("ask", [plain, streamed])
def test_a_loop_with_a_tool(heard: Play, ask: Callable[..., list[Any]]) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        from google.genai import types

        client = client_of(endpoint)
        config = {
            "system_instruction": SYSTEM,
            "tools": [{"function_declarations": [DECLARED]}],
            "automatic_function_calling": {"disable": True},
        }
        contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=QUESTION)])]
        for follows in (True, False):
            while True:
                model = endpoint.model
                answers = ask(client, model=model, contents=contents, config=config)
                contents += [answer.candidates[0].content for answer in answers]
                calls = [call for answer in answers for call in answer.function_calls or ()]
                if not calls:
                    break
                parts = [
                    types.Part.from_function_response(
                        name=call.name, response={"result": found(**call.args)}
                    )
                    for call in calls
                ]
                contents.append(types.Content(role="user", parts=parts))
            if follows:
                contents.append(types.Content(role="user", parts=[types.Part(text=FOLLOW)]))
        return 1.0

    one = heard(solve)
    one.check_same_as_env()
    assert not one.rewrites


def test_its_chats_call_the_functions_themselves(heard: Play) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
            """Look up."""
            return found(a, b, k)

        client = client_of(endpoint)  # without a reference it closes its connections
        chat = client.chats.create(
            model=endpoint.model, config={"system_instruction": SYSTEM, "tools": [lookup]}
        )
        for said in (QUESTION, FOLLOW):
            chat.send_message(said)
        return 1.0

    one = heard(solve)
    one.check()
    assert one.causes == [None]
    assert len(one.rollout.turns) == len(SAYS)


@pytest.mark.parametrize("verb", ["generateContent", "streamGenerateContent?alt=sse"])
@pytest.mark.parametrize("text", SAYS)
def test_each_answer_is_of_the_official_type(heard: Play, text: str, verb: str) -> None:
    """The type notices keys that are too many, and none that are missing."""

    @agent
    def solve(endpoint: Any) -> float:
        from urllib.request import Request, urlopen

        from google.genai.types import GenerateContentResponse

        body = {
            "contents": [{"parts": [{"text": QUESTION}]}],
            "tools": [{"functionDeclarations": [DECLARED]}],
        }
        request = Request(
            f"{address(endpoint)}/v1beta/models/m:{verb}",
            json.dumps(body).encode(),
            {"content-type": "application/json", "x-goog-api-key": endpoint.api_key},
        )
        with urlopen(request, timeout=60) as reply:
            said = reply.read().decode()
        chunks = [line.removeprefix("data: ") for line in said.split("\n\n") if line.strip()]
        for chunk in chunks:
            typed = GenerateContentResponse.model_validate_json(chunk)
            again = typed.model_dump(exclude_unset=True, by_alias=True, mode="json")
            assert again == json.loads(chunk)
        return 1.0

    heard(solve, says=[text]).check()


def test_refusals_are_its_errors(heard: Play) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        from google.genai import errors

        client = client_of(endpoint)
        client.models.generate_content(model="m", contents="a")
        assert client.models.count_tokens(model="m", contents="a").total_tokens > 0
        with pytest.raises(errors.ClientError, match="cachedContent is not supported") as raised:
            client.models.generate_content(
                model="m", contents="a", config={"cached_content": "cachedContents/c"}
            )
        assert (raised.value.code, raised.value.status) == (400, "INVALID_ARGUMENT")
        return 1.0

    heard(solve, says=["yes"]).check()


def test_langchain(heard: Play) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
        from langchain_google_genai import ChatGoogleGenerativeAI

        model = ChatGoogleGenerativeAI(
            model=endpoint.model, google_api_key=endpoint.api_key, base_url=address(endpoint)
        ).bind_tools([LOOKUP])
        messages: list[Any] = [SystemMessage(SYSTEM), HumanMessage(QUESTION)]
        for follows in (True, False):
            while True:
                messages.append(answer := await model.ainvoke(messages))
                if not answer.tool_calls:
                    break
                messages += [
                    ToolMessage(found(**call["args"]), tool_call_id=call["id"], name=call["name"])
                    for call in answer.tool_calls
                ]
            if follows:
                messages.append(HumanMessage(FOLLOW))
        return 1.0

    one = heard(solve)
    one.check()
    assert one.causes == [None]
    assert len(one.rollout.turns) == len(SAYS)


@pytest.mark.parametrize("stream", [False, True])
def test_pydantic_ai(heard: Play, stream: bool) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        from pydantic_ai import Agent
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        provider = GoogleProvider(client=client_of(endpoint))
        finder = Agent(GoogleModel(endpoint.model, provider=provider), system_prompt=SYSTEM)

        @finder.tool_plain
        def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
            """Look up."""
            return found(a, b, k)

        history: Any = None
        for said in (QUESTION, FOLLOW):
            async with finder.iter(said, message_history=history) as run:
                async for node in run:
                    if stream and Agent.is_model_request_node(node):
                        async with node.stream(run.ctx) as deltas:
                            assert [delta async for delta in deltas]
            assert run.result is not None
            history = run.result.all_messages()
        return 1.0

    one = heard(solve)
    one.check()
    assert one.causes == [None]
    assert len(one.rollout.turns) == len(SAYS)
