"""Official SDKs that show images, in what users say and in what tools return."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from abut.gateway.server.gateway import Gateway
from tests.kit.clients.conversation import LOOKUP
from tests.kit.stage.agents import a_call, check_tree, says, serving
from tests.kit.stage.rollouts import Recording, Stage

ENVIRONMENTS = ("dialects",)

FUNCTION: dict[str, Any] = LOOKUP["function"]  # type: ignore[assignment]


@pytest.fixture
def seen() -> tuple[Stage, Any]:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    from tests.kit.clients.image_talks import seeing_stage

    return seeing_stage("qwen3_vl")


@pytest.fixture
def holds(seen: tuple[Stage, Any]) -> Iterator[Callable[..., None]]:
    """Lets a client hold a conversation with three pictures, and checks its row."""
    from tests.kit.clients.image_pictures import encoded, picture
    from tests.kit.clients.image_talks import Seeing, check_images

    stage, hf_processor = seen
    one, two = picture(1), picture(2)
    sampler: Recording = says(stage, a_call(a="one"), "It is.", "Bye.", kind=Seeing)
    with serving(sampler, hf_processor) as gateway:

        def hold(talk: Callable[[Gateway, Callable[[int], bytes]], None]) -> None:
            level = 0

            def png(number: int) -> bytes:
                nonlocal level
                level = (level + 1) % 10
                return encoded(one if number == 1 else two, compress_level=level)

            talk(gateway, png)
            rollout = gateway.end("a", 1.0)
            assert (rollout.error, rollout.branches, len(rollout.turns)) == (None, [], 3)
            check_images(rollout, stage, one, two, one)
            check_tree(rollout, sampler.calls)

        yield hold


def as_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_openai_chat(holds: Callable[..., None]) -> None:
    def talk(gateway: Gateway, png: Callable[[int], bytes]) -> None:
        import openai

        def shown(number: int) -> Any:
            return {"type": "image_url", "image_url": {"url": as_url(png(number)), "detail": "low"}}

        endpoint = gateway.endpoint("a")
        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            answers: list[Any] = []
            for turn in range(3):
                text = {"type": "text", "text": "What?"}
                messages: list[Any] = [{"role": "user", "content": [text, shown(1)]}]
                if turn > 0:
                    id_ = answers[0].tool_calls[0].id
                    result = {"role": "tool", "tool_call_id": id_, "content": [shown(2)]}
                    messages += [answers[0], result]
                if turn > 1:
                    messages += [answers[1], {"role": "user", "content": [text, shown(1)]}]
                done = client.chat.completions.create(
                    model="policy", messages=messages, tools=[LOOKUP]
                )
                answers.append(done.choices[0].message)

    holds(talk)


def test_openai_responses(holds: Callable[..., None]) -> None:
    def talk(gateway: Gateway, png: Callable[[int], bytes]) -> None:
        import openai

        def shown(number: int) -> Any:
            return {"type": "input_image", "image_url": as_url(png(number)), "detail": "auto"}

        endpoint = gateway.endpoint("a")
        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:

            def ask(items: Any, **more: Any) -> Any:
                tools: Any = [{"type": "function", "strict": False, **FUNCTION}]
                return client.responses.create(model="policy", input=items, tools=tools, **more)

            text = {"type": "input_text", "text": "What?"}
            items: list[Any] = [{"role": "user", "content": [text, shown(1)]}]
            first = ask(items)
            (call,) = (item for item in first.output if item.type == "function_call")
            result = {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": [shown(2)],
            }
            items[0]["content"][1] = shown(1)
            second = ask([*items, *first.output, result])
            third = [{"role": "user", "content": [text, shown(1)]}]
            ask(third, previous_response_id=second.id)

    holds(talk)


def test_anthropic(holds: Callable[..., None]) -> None:
    def talk(gateway: Gateway, png: Callable[[int], bytes]) -> None:
        import anthropic

        def shown(number: int) -> Any:
            data = base64.b64encode(png(number)).decode()
            source = {"type": "base64", "media_type": "image/png", "data": data}
            return {"type": "image", "source": source}

        endpoint = gateway.endpoint("a")
        tool: Any = {
            "name": FUNCTION["name"],
            "description": FUNCTION["description"],
            "input_schema": FUNCTION["parameters"],
        }
        with anthropic.Anthropic(
            base_url=endpoint.anthropic_url, api_key=endpoint.api_key
        ) as client:
            answers: list[Any] = []
            text = {"type": "text", "text": "What?"}
            for turn in range(3):
                messages: list[Any] = [{"role": "user", "content": [text, shown(1)]}]
                if turn > 0:
                    (call,) = (one for one in answers[0].content if one.type == "tool_use")
                    result = {
                        "type": "tool_result",
                        "tool_use_id": call.id,
                        "content": [shown(2)],
                    }
                    messages += [
                        {"role": "assistant", "content": answers[0].content},
                        {"role": "user", "content": [result]},
                    ]
                if turn > 1:
                    messages += [
                        {"role": "assistant", "content": answers[1].content},
                        {"role": "user", "content": [text, shown(1)]},
                    ]
                answers.append(
                    client.messages.create(
                        model="policy", max_tokens=100, messages=messages, tools=[tool]
                    )
                )

    holds(talk)


def test_google_genai(holds: Callable[..., None]) -> None:
    def talk(gateway: Gateway, png: Callable[[int], bytes]) -> None:
        from google import genai
        from google.genai import types

        endpoint = gateway.endpoint("a")
        schema = json.loads(json.dumps(FUNCTION["parameters"]))
        declared = types.FunctionDeclaration(
            name=FUNCTION["name"],
            description=FUNCTION["description"],
            parameters_json_schema=schema,
        )
        config = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[declared])])
        client = genai.Client(
            api_key=endpoint.api_key, http_options={"base_url": endpoint.gemini_url}
        )

        def shown() -> Any:
            data = types.Part.from_bytes(data=png(1), mime_type="image/png")
            return types.Content(role="user", parts=[types.Part.from_text(text="What?"), data])

        answers: list[Any] = []
        for turn in range(3):
            contents: list[Any] = [shown()]
            if turn > 0:
                (call,) = (part.function_call for part in answers[0].parts if part.function_call)
                blob = types.FunctionResponseBlob(data=png(2), mime_type="image/png")
                response = types.FunctionResponse(
                    id=call.id,
                    name=call.name,
                    response={"result": "found"},
                    parts=[types.FunctionResponsePart(inline_data=blob)],
                )
                result = types.Part(function_response=response)
                contents += [answers[0], types.Content(role="user", parts=[result])]
            if turn > 1:
                contents += [answers[1], shown()]
            done = client.models.generate_content(model="policy", contents=contents, config=config)
            answers.append(done.candidates[0].content)

    holds(talk)
