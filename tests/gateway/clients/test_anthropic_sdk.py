"""Anthropic's SDK, whose types all answers have."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import FOLLOW, LOOKUP, QUESTION, SAYS, SYSTEM, Heard, found
from tests.kit.clients.template_stage import TemplateStage, on_each_template

ENVIRONMENTS = ("dialects",)

Play = Callable[..., Heard]
TOOL = {
    "name": "lookup",
    "description": "Look up.",
    "input_schema": LOOKUP["function"]["parameters"],  # type: ignore[index]
}


def client_of(endpoint: Any) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=endpoint.anthropic_url, api_key=endpoint.api_key)


def accepted(kind: Any, value: Any) -> Any:
    """The value as the official type, which has all of it and nothing else."""
    from pydantic import TypeAdapter

    typed = TypeAdapter(kind).validate_python(value)
    assert typed.model_dump(exclude_unset=True) == value
    assert not typed.model_extra
    return typed


def plain(client: Any, **options: Any) -> Any:
    from anthropic.types import Message

    reply = client.messages.with_raw_response.create(**options)
    return accepted(Message, json.loads(reply.text()))


def streamed(client: Any, **options: Any) -> Any:
    with client.messages.stream(**options) as stream:
        return stream.get_final_message()


def events(client: Any, **options: Any) -> Any:
    """Each event is one of the official types, and together they are the whole message."""
    from anthropic.types import RawMessageStreamEvent

    with client.messages.with_streaming_response.create(stream=True, **options) as reply:
        lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
    kinds = [accepted(RawMessageStreamEvent, json.loads(line[6:])).type for line in lines]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") > 0
    return None


@on_each_template
@pytest.mark.parametrize("ask", [plain, streamed])
@pytest.mark.parametrize("dumped", [False, True])
def test_a_loop_with_a_tool(
    heard: Play, stage: TemplateStage, ask: Callable[..., Any], dumped: bool
) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        client = client_of(endpoint)
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        options = {
            "model": endpoint.model,
            "max_tokens": 5000,
            "system": SYSTEM,
            "tools": [TOOL] if stage.takes_tools else [],
        }
        for follows in (True, False):
            while True:
                answer = ask(client, messages=messages, **options)
                counted = client.messages.count_tokens(
                    messages=messages,
                    **{key: options[key] for key in ("model", "system", "tools")},
                )
                assert counted.input_tokens == answer.usage.input_tokens
                content = [b.model_dump() for b in answer.content] if dumped else answer.content
                messages.append({"role": "assistant", "content": content})
                calls = [block for block in answer.content if block.type == "tool_use"]
                if not calls:
                    break
                messages.append({"role": "user", "content": [answered(call) for call in calls]})
            if follows:
                messages.append({"role": "user", "content": FOLLOW})
        return 1.0

    one = heard(solve)
    one.check_same_as_env()
    assert not one.rewrites


def answered(call: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call.id, "content": found(**call.input)}


@pytest.mark.parametrize("text", SAYS)
def test_each_event_of_a_stream_is_of_an_official_type(heard: Play, text: str) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        client = client_of(endpoint)
        messages = [{"role": "user", "content": QUESTION}]
        events(client, model="m", max_tokens=5000, messages=messages, tools=[TOOL])
        return 1.0

    heard(solve, says=[text]).check()


def test_refusals_are_its_errors(heard: Play) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        import anthropic

        client = client_of(endpoint)
        ask: Any = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "a"}]}
        client.messages.create(**ask)
        for fields in ({"messages": []}, {"extra_body": {"container": "c"}}):
            with pytest.raises(anthropic.BadRequestError) as raised:
                client.messages.create(**{**ask, **fields})
            assert raised.value.type == "invalid_request_error"
        with pytest.raises(anthropic.BadRequestError, match="does not open"):
            client.with_options(api_key="another").messages.create(**ask)
        with pytest.raises(anthropic.NotFoundError):
            client.messages.batches.list()
        return 1.0

    heard(solve, says=["yes"]).check()


def test_the_tool_runner_sends_all_messages_where_threads_are_refused(heard: Play) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        import anthropic

        @anthropic.beta_tool
        def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
            """Look up."""
            return found(a, b, k)

        client = client_of(endpoint)
        runner = client.beta.messages.tool_runner(
            model=endpoint.model,
            max_tokens=5000,
            system=SYSTEM,
            tools=[lookup],
            messages=[{"role": "user", "content": QUESTION}],
        )
        assert runner.until_done().content[-1].text == "The answer is 42."
        return 1.0

    one = heard(solve, says=SAYS[:4])
    one.check()
    assert one.causes == [None]
