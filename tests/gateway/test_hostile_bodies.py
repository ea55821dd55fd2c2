"""Bodies that are made to hurt: they cost what their length costs, and are refused at once."""

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from abut.gateway.dialects.anthropic import Anthropic
from abut.gateway.dialects.chat import Chat
from abut.gateway.dialects.claude_code import reads_as
from abut.gateway.dialects.dialect import HttpDialect
from abut.gateway.dialects.gemini import Gemini
from abut.gateway.dialects.responses import Responses
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.ledger.system_messages import SystemMessages
from abut.gateway.server import body_json
from abut.gateway.server.body import Body
from abut.gateway.server.results import checked_result
from abut.messages import Message

KILOBYTE = "x" * 1024


class NoSystem:
    """Refuses each probe, so that system messages are joined to those beside them."""

    def opening(self, messages: Any) -> list[str]:
        return [""]

    increment = opening


def results_of(count: int) -> Any:
    """A turn of calls without ids, half of which have results."""
    names = ["g"] * count + ["f"] * count
    calls = [{"functionCall": {"name": name, "args": {}}} for name in names]
    results = [{"functionResponse": {"name": "f", "response": {"a": "b"}}}] * count
    contents = [{"role": "model", "parts": calls}, {"role": "user", "parts": results}]
    return lambda: Gemini().read({"contents": contents})


def parts_of(count: int) -> Any:
    parts = [{"text": KILOBYTE}] * count
    return lambda: Gemini().read({"contents": [{"role": "model", "parts": parts}]})


def thoughts_of(count: int) -> Any:
    parts = [{"text": KILOBYTE, "thought": True}] * count
    return lambda: Gemini().read({"contents": [{"role": "model", "parts": parts}]})


def items_of(count: int) -> Any:
    items = [{"role": "assistant", "content": KILOBYTE}] * count
    return lambda: Responses().read({"input": items})


def reasoning_of(count: int) -> Any:
    summary = [{"type": "summary_text", "text": KILOBYTE}]
    items = [{"type": "reasoning", "summary": summary, "encrypted_content": KILOBYTE}] * count
    return lambda: Responses().read({"input": items})


def refused_parts_of(count: int) -> Any:
    refusals = [{"type": "refusal", "refusal": str(number)} for number in range(count)]
    texts = [{"type": "output_text", "text": "x"} for _ in range(count)]
    items = [{"role": "assistant", "content": [*refusals, *texts]}]
    return lambda: Responses().read({"input": items})


def placed(messages: list[Message]) -> list[Message]:
    places = SystemMessages(NoSystem(), lambda messages: [*messages])  # type: ignore[arg-type]
    return places.placed(messages, opens=True)


def users_of(count: int) -> Any:
    messages = [{"role": "user", "content": "x"} for _ in range(32 * count)]
    return lambda: placed(messages)


def joined_of(count: int) -> Any:
    pair = [{"role": "user", "content": KILOBYTE}, {"role": "system", "content": KILOBYTE}]
    return lambda: placed(pair * (count // 2))


def blanks_of(count: int) -> Any:
    text = " " * (4 * count) + "x"
    calls = [
        [{"id": "a", "function": {"name": "Write", "arguments": {"content": content}}}]
        for content in (text, text + "y")
    ]
    return lambda: reads_as(calls[0], calls[1])


def least_time(run: Callable[[], Any], times: int) -> float:
    """The least processor time of some runs, in seconds."""
    taken = []
    for _ in range(times):
        gc.disable()
        begun = time.process_time()
        run()
        taken.append(time.process_time() - begun)
        gc.enable()
    return min(taken)


GEMINI = (results_of, parts_of, thoughts_of)
RESPONSES = (items_of, reasoning_of, refused_parts_of)


@pytest.mark.parametrize("made", [*GEMINI, *RESPONSES, users_of, joined_of, blanks_of])
def test_reading_a_body_takes_as_long_as_it_is_long(made: Callable[[int], Any]) -> None:
    # 32 times the length takes 32 times as long, or about 1024 times where it is quadratic.
    small, large = made(250), made(8000)
    assert least_time(large, 2) < 200 * least_time(small, 5)


def deep(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


ASKED = [{"role": "user", "content": "hi"}]
REFUSED = {
    "a handle that is no text": {"input": [{"type": "reasoning", "encrypted_content": {"a": 1}}]},
    "a deep handle": {"input": [{"type": "reasoning", "encrypted_content": deep(400)}]},
    "a deep refusal": {
        "input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": deep(400)}]}]
    },
    "deep metadata": {"input": ASKED, "metadata": deep(400)},
    "a deep temperature": {"input": ASKED, "temperature": deep(400)},
    "a deep parallel_tool_calls": {"input": ASKED, "parallel_tool_calls": deep(400)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_responses_keeps_or_repeats_is_text_or_not_deep(name: str) -> None:
    with pytest.raises(Refusal, match=r"must be a (string|number)|more than 100 deep"):
        Responses().read(REFUSED[name])


def test_a_request_too_deep_for_its_digest_is_refused() -> None:
    asked = AgentRequest(ASKED, sampling={"temperature": deep(3000)})
    with pytest.raises(Refusal, match="nested too deeply"):
        asked.digest  # noqa: B018


CALL = {"name": "f", "args": {}}
MIXED: list[dict[str, Any]] = [
    {"functionCall": CALL, "text": "x"},
    {"function_call": CALL, "text": "x"},
    {"text": "x", "inlineData": {"mimeType": "image/png", "data": ""}},
    {"functionResponse": {"name": "f", "response": {}}, "inline_data": {"data": ""}},
    {"functionResponse": {"name": "f", "response": {}}, "text": "x"},
]


@pytest.mark.parametrize("part", MIXED)
@pytest.mark.parametrize("role", ["user", "model"])
def test_a_part_of_two_kinds_is_refused_not_read_by_half(part: Any, role: str) -> None:
    with pytest.raises(Refusal, match="two kinds of data"):
        Gemini().read({"contents": [{"role": role, "parts": [part]}]})


def test_an_empty_id_is_none() -> None:
    calls = [{"functionCall": {**CALL, "id": ""}}] * 2
    results = [{"functionResponse": {"id": "", "name": "f", "response": {"a": "b"}}}] * 2
    contents = [{"role": "model", "parts": calls}, {"role": "user", "parts": results}]
    turn, *answers = Gemini().read({"contents": contents}).messages
    ids = [call["id"] for call in turn["tool_calls"]]
    assert len({*ids, ""}) == 3
    assert [answer["tool_call_id"] for answer in answers] == ids


def test_a_property_may_have_the_name_of_a_field_of_schemas() -> None:
    names = ("default", "example", "enum", "type", "properties")
    inner = {"type": "STRING", "enum": ["A"], "default": {"type": "A"}}
    schema = {"type": "OBJECT", "properties": dict.fromkeys(names, inner)}
    tools = [{"functionDeclarations": [{"name": "f", "parameters": schema}]}]
    asked = Gemini().read({"contents": [{"parts": [{"text": "hi"}]}], "tools": tools})
    assert asked.tools is not None
    assert asked.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {name: {**inner, "type": "string"} for name in names},
    }


LONG = "x" * 2**20
REFLECTED: list[tuple[HttpDialect, dict[str, Any]]] = [
    (Chat(), {"messages": ASKED, "n": LONG}),
    (Chat(), {"messages": ASKED, "top_logprobs": [LONG] * 9}),
    (Chat(), {"messages": ASKED, "tool_choice": LONG}),
    (Chat(), {"messages": ASKED, "max_tokens": LONG}),
    (Chat(), {"messages": ASKED, "stream": LONG}),
    (Chat(), {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
    (Responses(), {"input": ASKED, "tool_choice": {"mode": LONG}}),
    (Responses(), {"input": [{"type": LONG}]}),
    (Responses(), {"input": [{"role": "user", "content": [{"type": LONG}]}]}),
    (Anthropic(), {"messages": ASKED, "max_tokens": 1, "tool_choice": {"type": LONG}}),
    (Anthropic(), {"messages": [{"role": "user", "content": [{"type": LONG}]}], "max_tokens": 1}),
    (Gemini(), {"contents": [{"parts": [{LONG: 1}]}]}),
    (Gemini(), {"contents": [], "generationConfig": {"candidateCount": LONG}}),
    (Gemini(), {"contents": [], "generationConfig": {"responseModalities": {LONG: LONG}}}),
    (Gemini(), {"contents": [], "toolConfig": {"functionCallingConfig": {"mode": LONG}}}),
]


MANY = 100_000
MANY_VALUES = [
    b'{"messages": [' + b"0," * MANY + b"0]}",
    b"{" + b'"": 0,' * MANY + b'"messages": [0]}',
    b'{"messages": [0]' + b', "": 0' * MANY + b"}",
    b'{"messages": [0]' + b" " * MANY + b"}",
]


@pytest.mark.parametrize("content", MANY_VALUES, ids=("elements", "before", "behind", "spaces"))
def test_many_short_values_are_parsed_at_once(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = 0
    value_at = body_json._value_at

    def counted(text: str, at: int) -> tuple[Any, int]:
        nonlocal parsed
        parsed += 1
        return value_at(text, at)

    monkeypatch.setattr(body_json, "_value_at", counted)
    found, _ = body_json.read_body(Body.of([content]), Chat())
    assert found == json.loads(content)
    assert parsed < 5_000


@pytest.mark.parametrize("case", REFLECTED, ids=lambda case: type(case[0]).__name__)
def test_a_refusal_is_short_whatever_it_refuses(case: tuple[HttpDialect, dict[str, Any]]) -> None:
    dialect, body = case
    with pytest.raises(Refusal) as refused:
        dialect.read(body)
    assert len(str(refused.value)) < 1000


def test_the_refusal_of_a_reward_or_a_name_is_short() -> None:
    for body in ({"reward": LONG}, {"names": {"a": LONG}}):
        with pytest.raises(Refusal) as refused:
            checked_result(body)
        assert len(str(refused.value)) < 1000
