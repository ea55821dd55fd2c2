"""google-genai, whose types all answers have."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import FOLLOW, LOOKUP, QUESTION, SAYS, SYSTEM, Heard, found
from tests.kit.clients.template_stage import TemplateStage, on_each_template

ENVIRONMENTS = ("dialects",)

Play = Callable[..., Heard]
DECLARED = {
    "name": "lookup",
    "description": "Look up.",
    "parametersJsonSchema": LOOKUP["function"]["parameters"],  # type: ignore[index]
}


def client_of(endpoint: Any) -> Any:
    from google import genai

    return genai.Client(
        api_key=endpoint.api_key,
        http_options={"base_url": endpoint.gemini_url},
        vertexai=False,
    )


def plain(client: Any, **options: Any) -> list[Any]:
    return [client.models.generate_content(**options)]


def streamed(client: Any, **options: Any) -> list[Any]:
    return list(client.models.generate_content_stream(**options))


@on_each_template
@pytest.mark.parametrize("ask", [plain, streamed])
def test_a_loop_with_a_tool(
    heard: Play, stage: TemplateStage, ask: Callable[..., list[Any]]
) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        from google.genai import types

        client = client_of(endpoint)
        config = {
            "system_instruction": SYSTEM,
            "tools": [{"function_declarations": [DECLARED]}] if stage.takes_tools else [],
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

    heard(solve).check_same_as_env()


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
            f"{endpoint.gemini_url}/v1beta/models/m:{verb}",
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
