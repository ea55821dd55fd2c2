"""How clients of Anthropic Messages write what a chat client would say."""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abut.gateway.dialects.anthropic import Anthropic
from tests.kit.clients.dialect_clients import assembled
from tests.kit.clients.edits import same
from tests.kit.clients.habits import own
from tests.kit.clients.tree import Item, Message, Node, answered
from tests.kit.dialects.spelling import (
    OTHER_HABITS,
    OtherSpelling,
    as_json,
    function_call,
    texts,
)

_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)


def arguments_read(node: Node, rng: random.Random) -> tuple[Message | None, Item] | None:
    """As Claude Code does: texts that spell a number or a switch come back as that."""
    message = own(node)
    found = False
    for call in message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        for key, value in arguments.items():
            if isinstance(value, str) and (read := _value_of(value)) is not None:
                arguments[key], found = read, True
        call["function"]["arguments"] = json.dumps(arguments)
    return (message, answered(node, reasoning=True)) if found else None


def _value_of(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return json.loads(text) if _NUMBER.fullmatch(text.strip()) else None


class AnthropicSpelling(OtherSpelling):
    """Blocks; results beside each other come in any order."""

    dialect = Anthropic()
    habits = (*OTHER_HABITS, arguments_read, arguments_read)
    system_later = True

    def body(self, chat: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        messages = [*chat["messages"]]
        body: dict[str, Any] = {"model": "policy"}
        if messages[0]["role"] == "system":
            body["system"] = _content(messages.pop(0), rng)
        if rng.random() < 0.3:
            line = {"type": "text", "text": f"x-anthropic-billing-header: {rng.random()}"}
            system = body.get("system", [])
            shown = [{"type": "text", "text": system}] if isinstance(system, str) else system
            body["system"] = [line, *shown]
        body["messages"] = _messages(messages, rng)
        if chat.get("tools"):
            body["tools"] = [_tool(tool["function"]) for tool in chat["tools"]]
        for name, key in (("max_tokens", "max_tokens"), ("stop", "stop_sequences")):
            if name in chat:
                body[key] = chat[name]
        if rng.random() < 0.3:
            body["metadata"] = {"user_id": str(rng.random())}
        return body

    def heard(self, answer: Any) -> Message:
        message: Message = {"role": "assistant", "content": None}
        for block in answer["content"]:
            if block["type"] == "thinking":
                message["reasoning"] = message["reasoning_content"] = block["thinking"]
                message["handle"] = block["signature"]
            elif block["type"] == "text":
                message["content"] = block["text"]
            else:
                arguments = json.dumps(block["input"])
                call = function_call(block["id"], block["name"], arguments)
                message.setdefault("tool_calls", []).append(call)
        return message

    def assembled(self, events: Sequence[Any]) -> Any:
        return assembled(list(events))

    def whole(self, answer: Any) -> Any:
        return answer

    def edits(self, node: Node, message: Message) -> Iterator[tuple[str, Message]]:
        yield from super().edits(node, message)
        yield "a foreign signature", message | {"handle": "EqQBCkYIBxgC"}

    def is_same(self, messages: Sequence[Message], edited: Sequence[Message]) -> bool:
        return len(messages) == len(edited) and all(
            as_json(one) == as_json(two) or _reads(one, two)
            for one, two in zip(messages, edited, strict=True)
        )


def _reads(message: Message, other: Message) -> bool:
    """Whether messages differ only in what `arguments_read` may change."""
    calls, others = message.get("tool_calls", []), other.get("tool_calls", [])
    if message | {"tool_calls": []} != other | {"tool_calls": []} or len(calls) != len(others):
        return False
    return all(_reads_call(call, came) for call, came in zip(calls, others, strict=True))


def _reads_call(call: Any, came: Any) -> bool:
    mine, theirs = call["function"]["arguments"], came["function"]["arguments"]
    if (call["id"], call["function"]["name"]) != (came["id"], came["function"]["name"]):
        return False
    if not (isinstance(mine, dict) and isinstance(theirs, dict)) or {*mine} != {*theirs}:
        return False
    return all(
        as_json(value) == as_json(theirs[key])
        or (
            isinstance(value, str)
            and _value_of(value) is not None
            and same(_value_of(value), theirs[key])
        )
        for key, value in mine.items()
    )


def _tool(function: Any) -> Any:
    made = {**function, "input_schema": function["parameters"]}
    del made["parameters"]
    return made


def _messages(messages: Sequence[Message], rng: random.Random) -> list[Message]:
    written: list[Message] = []
    calls: dict[str, int] = {}
    place = 0
    while place < len(messages):
        message = messages[place]
        end = place + 1
        if message["role"] == "tool":
            end = _in_order(messages, place, calls) if rng.random() < 0.7 else end
            blocks = [_result(one, rng) for one in messages[place:end]]
            follows = messages[end] if end < len(messages) else message
            if follows["role"] == "user" and rng.random() < 0.5:
                blocks += [_text(text, rng) for text in texts(follows["content"])]
                end += 1
                if len(texts(follows["content"])) == 1:
                    rng.shuffle(blocks)
            else:
                rng.shuffle(blocks)
            written.append({"role": "user", "content": blocks})
        elif message["role"] == "assistant":
            for call in message.get("tool_calls", ()):
                calls[call["id"]] = len(calls)
            written.append({"role": "assistant", "content": _blocks(message, rng)})
        else:
            written.append({"role": message["role"], "content": _content(message, rng)})
        place = end
    return written


def _in_order(messages: Sequence[Message], place: int, calls: Mapping[str, int]) -> int:
    """The end of the results from a place on that are in the order of their calls."""
    last = calls.get(messages[place]["tool_call_id"], len(calls))
    end = place + 1
    while end < len(messages) and messages[end]["role"] == "tool":
        at = calls.get(messages[end]["tool_call_id"], len(calls))
        if at <= last:  # where two are equal, they stay in the order in which they come
            break
        last, end = at, end + 1
    return end


def _marked(block: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    return block | {"cache_control": {"type": "ephemeral"}} if rng.random() < 0.2 else block


def _text(text: str, rng: random.Random) -> dict[str, Any]:
    return _marked({"type": "text", "text": text}, rng)


def _content(message: Message, rng: random.Random) -> Any:
    if isinstance(message["content"], str) and rng.random() < 0.5:
        return message["content"]
    return [_text(text, rng) for text in texts(message["content"])]


def _result(message: Message, rng: random.Random) -> dict[str, Any]:
    result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
    if message["content"] or rng.random() < 0.5:
        result["content"] = _content(message, rng)
    if result.get("content") == "":
        del result["content"]
    return _marked(result | ({"is_error": True} if rng.random() < 0.2 else {}), rng)


def _blocks(message: Message, rng: random.Random) -> Any:
    blocks: list[dict[str, Any]] = []
    thinking, handle = message.get("reasoning_content", ""), message.get("handle")
    if thinking or handle:
        signed = {"signature": handle} if handle else {}
        blocks.append({"type": "thinking", "thinking": thinking, **signed})
    elif rng.random() < 0.1:
        blocks.append({"type": "redacted_thinking", "data": "x"})
    said = []
    if message["content"] and rng.random() < 0.2:  # clients may cut a text
        middle = rng.randrange(len(message["content"]) + 1)
        said = [_text(message["content"][:middle], rng), _text(message["content"][middle:], rng)]
    elif message["content"] or rng.random() < 0.1:
        said = [_text(message["content"], rng)]
    called = [
        _marked(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": call["function"]["name"],
                "input": call["function"]["arguments"],
            },
            rng,
        )
        for call in message.get("tool_calls", ())
    ]
    blocks += called + said if message.get("reordered") else said + called
    is_text = [block["type"] for block in blocks] == ["text"]
    return blocks[0]["text"] if is_text and rng.random() < 0.3 else blocks
