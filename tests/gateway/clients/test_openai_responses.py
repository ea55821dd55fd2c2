"""OpenAI's SDK on Responses, whose types all answers have."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import FOLLOW, LOOKUP, QUESTION, SAYS, SYSTEM, Heard, found
from tests.kit.clients.template_stage import TemplateStage, on_each_template

ENVIRONMENTS = ("dialects",)

Play = Callable[..., Heard]
TOOL = {"type": "function", "strict": False, **LOOKUP["function"]}  # type: ignore[dict-item]


def accepted(kind: Any, value: Any) -> Any:
    """The value as the official type, which has all of it and nothing else."""
    from pydantic import TypeAdapter

    typed = TypeAdapter(kind).validate_python(value)
    assert typed.model_dump(exclude_unset=True, by_alias=True) == value
    assert not typed.model_extra
    return typed


def client_of(endpoint: Any) -> Any:
    import openai

    return openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)


def plain(client: Any, **options: Any) -> Any:
    from openai.types.responses import Response

    return accepted(Response, json.loads(client.responses.with_raw_response.create(**options).text))


def streamed(client: Any, **options: Any) -> Any:
    with client.responses.stream(**options) as stream:
        return stream.get_final_response()


@on_each_template
@pytest.mark.parametrize("ask", [plain, streamed])
@pytest.mark.parametrize("previous", [False, True])
def test_a_loop_with_a_tool(
    heard: Play, stage: TemplateStage, ask: Callable[..., Any], previous: bool
) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        client = client_of(endpoint)
        tools = [TOOL] if stage.takes_tools else []
        options: Any = {"model": endpoint.model, "instructions": SYSTEM, "tools": tools}
        items: list[Any] = [{"role": "user", "content": QUESTION}]
        for follows in (True, False):
            while True:
                answer = ask(client, input=items, **options)
                if previous:
                    options["previous_response_id"] = answer.id
                    items = []
                else:
                    items += answer.output
                calls = [item for item in answer.output if item.type == "function_call"]
                items += [
                    {
                        "type": "function_call_output",
                        "call_id": call.call_id,
                        "output": found(**json.loads(call.arguments)),
                    }
                    for call in calls
                ]
                if not calls:
                    break
            if follows:
                items.append({"role": "user", "content": FOLLOW})
        assert client.responses.retrieve(answer.id).output_text == "Goodbye."
        return 1.0

    one = heard(solve)
    one.check_same_as_env()
    assert not one.rewrites


@pytest.mark.parametrize("text", SAYS)
def test_each_event_of_a_stream_is_of_an_official_type(heard: Play, text: str) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        from openai.types.responses import ResponseStreamEvent

        ask: Any = {"model": "m", "input": QUESTION, "tools": [TOOL], "stream": True}
        with client_of(endpoint).responses.with_streaming_response.create(**ask) as reply:
            lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
        kinds = [accepted(ResponseStreamEvent, json.loads(line[6:])).type for line in lines]
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        return 1.0

    heard(solve, says=[text]).check()


def test_refusals_are_its_errors(heard: Play) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        import openai

        client = client_of(endpoint)
        client.responses.create(model="m", input="a")
        for fields in ({"background": True}, {"previous_response_id": "resp_1"}):
            with pytest.raises(openai.BadRequestError) as raised:
                client.responses.create(model="m", input="a", **fields)
            assert raised.value.param in fields
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_1")
        return 1.0

    heard(solve, says=["yes"]).check()
