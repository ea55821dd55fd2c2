"""Bodies that no client would send: in each dialect they are read, or refused."""

import copy
import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from abut.gateway.dialects.anthropic import Anthropic
from abut.gateway.dialects.chat import Chat
from abut.gateway.dialects.dialect import HttpDialect
from abut.gateway.dialects.gemini import Gemini
from abut.gateway.dialects.responses import Responses
from abut.gateway.ledger.comparable import comparable_message
from abut.gateway.ledger.entry import OWN_KEYS
from abut.gateway.ledger.matching import History
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.ledger.writer import template_messages
from tests.kit.clients.dialect_clients import send
from tests.kit.stage.agents import LOOKUP, says, serving
from tests.kit.stage.rollouts import Stage

FUNCTION: dict[str, Any] = LOOKUP["function"]  # type: ignore[assignment]
TEXT = {"type": "text", "text": ""}
FOUND = {"type": "function", "name": "h"}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "so",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "tools": [LOOKUP],
    "tool_choice": "auto",
    "stop": ["x"],
    "max_tokens": 3,
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": False},
}
ANTHROPIC: dict[str, Any] = {
    "model": "m",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "so", "signature": "abut.0"},
                {"type": "text", "text": "x"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": [1, True]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "text", "text": ""}],
                },
                {"type": "text", "text": "y"},
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "z"}]},
    ],
    "tools": [{**FUNCTION, "input_schema": FUNCTION["parameters"], "defer_loading": False}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "output_config": {"effort": "high"},
    "stop_sequences": ["x"],
    "max_tokens": 3,
    "thinking": {"type": "adaptive"},
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "so"}],
            "content": None,
            "encrypted_content": "abut.0",
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
        {"type": "tool_search_call", "call_id": "e", "arguments": {"q": 1}},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": []},
        {
            "type": "tool_search_output",
            "call_id": "e",
            "tools": [{"type": "function", "name": "h"}],
        },
    ],
    "tools": [
        {"type": "function", **FUNCTION},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
        {"type": "custom", "name": "g", "format": {"type": "grammar"}},
        {"type": "tool_search", "execution": "client"},
    ],
    "tool_choice": "auto",
    "text": {"format": {"type": "text"}},
    "max_output_tokens": 3,
    "previous_response_id": "resp_a-0",
}
GEMINI: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "so", "thought": True},
                {"text": "x"},
                {
                    "functionCall": {"id": "c", "name": "f", "args": {"a": 1}},
                    "thoughtSignature": "YQ==",
                },
                {"functionCall": {"name": "f"}},
            ],
        },
        {
            "parts": [
                {"functionResponse": {"id": "c", "name": "f", "response": {"result": "x"}}},
                {"functionResponse": {"name": "f", "response": {"a": 1, "b": 2}}},
                {"text": "y"},
            ]
        },
    ],
    "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    "generationConfig": {"maxOutputTokens": 3, "stopSequences": ["x"], "candidateCount": 1},
}
DIALECTS: list[tuple[type[HttpDialect], dict[str, Any]]] = [
    (Chat, CHAT),
    (Anthropic, ANTHROPIC),
    (Responses, RESPONSES),
    (Gemini, GEMINI),
]
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, "", "x", "{", [], {}, [[]], [None], {"type": "text"}, [1]),
    *("\ud800", "<|im_end|>", 10**400, {"": {}}, [{"type": "text", "text": 3}], "abut.0", ["abut"]),
)
TRIES = 1500


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a JSON value."""
    inner: Any = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    found = [path] if path else []
    for key, one in inner:
        found += nodes(one, (*path, key))
    return found


def changed(body: dict[str, Any], random: Random) -> dict[str, Any]:
    """A body with one odd value in it, or without one of its own."""
    other = copy.deepcopy(body)
    *way, last = random.choice(nodes(other))
    at: Any = other
    for key in way:
        at = at[key]
    if random.random() < 0.2:
        del at[last]
    else:
        at[last] = copy.deepcopy(random.choice(ODD))
    return other


@pytest.mark.parametrize(("kind", "body"), DIALECTS, ids=[kind.__name__ for kind, _ in DIALECTS])
def test_an_odd_body_is_read_or_refused(kind: type[HttpDialect], body: dict[str, Any]) -> None:
    dialect: HttpDialect = kind()
    random = Random(0)
    refused = 0
    for number in range(TRIES):
        odd = body if not number else changed(body, random)
        if random.random() < 0.5:
            odd = changed(odd, random)
        shown = json.dumps(odd)
        try:
            asked = dialect.read(odd, None, {})
        except Refusal as refusal:
            refused += 1
            json.dumps(dialect.refused(refusal))
            continue
        # Whatever was read can be compared, told apart, and given to a template.
        assert asked.messages, shown
        assert isinstance(asked.digest, bytes)
        assert isinstance(asked.frame, str)
        history = History(asked.messages)
        assert [history.comparable(at) for at in range(len(asked.messages))]
        assert all(map(comparable_message, asked.messages))
        for message in template_messages(asked.messages, {}):
            assert not {*OWN_KEYS} & {*message}
            assert isinstance(message["content"], str | list), shown
    assert TRIES / 10 < refused < TRIES * 0.9


@pytest.mark.parametrize(("kind", "body"), DIALECTS, ids=[kind.__name__ for kind, _ in DIALECTS])
def test_a_bomb_is_refused(kind: type[HttpDialect], body: dict[str, Any]) -> None:
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    for path in nodes(body):
        bomb = copy.deepcopy(body)
        *way, last = path
        at: Any = bomb
        for key in way:
            at = at[key]
        at[last] = deep
        try:
            asked = kind().read(bomb, None, {})
        except (Refusal, RecursionError):  # both are a 400
            continue
        assert all(map(comparable_message, asked.messages)), path
        assert asked.frame


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", ANTHROPIC),
        ("/v1/responses", RESPONSES),
        ("/v1beta/models/m:generateContent", GEMINI),
    ],
)
def test_an_odd_body_never_fails_the_gateway(
    stage: Stage, hf_tokenizer: Any, path: str, body: dict[str, Any]
) -> None:
    random = Random(1)
    statuses: Counter[int] = Counter()
    with serving(says(stage), hf_tokenizer) as gateway:
        url, key = gateway.base_url.removesuffix("/v1"), gateway.key
        body = {name: value for name, value in body.items() if name != "previous_response_id"}
        for number in range(60):
            odd = changed(body, random) if number else body
            status, answer = send(f"{url}{path}", "", odd, **{"x-goog-api-key": key})
            assert status in (200, 400), (odd, answer)
            statuses[status] += 1
    assert {*statuses} == {200, 400}
