"""Every way in which a history can be edited: none of them may be taken for what was said.

What a client may write in two ways and mean the same is no edit, and is not made here: outer white
space of an answer, its thinking left out, another spelling of a number, other ids throughout, and
what the rules of `abut.gateway.matching` know of certain clients.
"""

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
Edit: TypeAlias = tuple[str, int, list[Message]]
"""What was done, the first message that is another one, and the history with it."""


def edits(messages: Sequence[Message], random: Random) -> Iterator[Edit]:
    """Histories with one edit each, somewhere in these messages."""
    for place, message in enumerate(messages):
        before, behind = [*messages[:place]], [*messages[place + 1 :]]
        for what, others in _instead(message, behind, random):
            edited = before + others
            if (first := _first_difference(messages, edited)) is not None:
                yield what, first, edited


def _first_difference(messages: Sequence[Message], edited: Sequence[Message]) -> int | None:
    """Where they differ as JSON: to Python, `True` is 1."""
    for place, (one, other) in enumerate(zip(messages, edited, strict=False)):
        if one is not other and json.dumps(one) != json.dumps(other):
            return place
    shorter = min(len(messages), len(edited))
    return None if len(messages) == len(edited) else shorter


def _instead(
    message: Message, behind: list[Message], random: Random
) -> Iterator[tuple[str, list[Message]]]:
    """What may stand in the place of a message and all that is behind it."""
    for what, other in _other_messages(message, random):
        yield what, [other, *behind]
    yield "something inserted", [{"role": "user", "content": "wait"}, message, *behind]
    if behind:
        yield "said twice", [message, message, *behind]
    is_answer = message["role"] == "assistant"
    if not is_answer or _text(message).strip() or message.get("tool_calls"):
        yield "left out", behind  # an empty answer may be
        if behind:
            yield "swapped with the next", [behind[0], message, *behind[1:]]
    if behind and message["role"] == behind[0]["role"] == "tool":
        for key in "content", "tool_call_id":
            one = {**message, key: behind[0].get(key)}
            two = {**behind[0], key: message.get(key)}
            yield f"{key} of two results swapped", [one, two, *behind[1:]]


def _other_messages(message: Message, random: Random) -> Iterator[tuple[str, Message]]:
    role = message["role"]
    yield "another role", {**message, "role": "system" if role == "user" else "user"}
    text = _text(message)
    for what, other in _other_texts(text, random):
        if other or not message.get("tool_calls"):  # text beside calls may get lost
            yield what, _with_text(message, other)
    if role != "assistant":
        yield "white space behind it", _with_text(message, text + "\n")
        return
    yield "thinking pasted into the text", _with_text(message, f"<think>\nno\n</think>\n\n{text}")
    for key in "reasoning_content", "reasoning":
        yield "other thinking", {**message, key: "what nobody thought"}
    for key in "refusal", "audio", "function_call":
        yield f"{key} added", {**message, key: "no"}
    calls = message.get("tool_calls") or []
    for what, others in _other_calls(calls):
        yield what, {**message, "tool_calls": others}
    if calls and text.strip():
        lost = [{**calls[0], "id": "no_such_call"}, *calls[1:]]
        yield "text lost and an id changed", {**_with_text(message, ""), "tool_calls": lost}


def _text(message: Message) -> str:
    """Of the first part, where there are parts."""
    content = message.get("content")
    if isinstance(content, list):
        return str(content[0].get("text") or "") if content else ""
    return content or ""


def _with_text(message: Message, text: str) -> Message:
    content = message.get("content")
    if isinstance(content, list) and content:
        return {**message, "content": [{**content[0], "text": text}, *content[1:]]}
    return {**message, "content": text}


def _other_texts(text: str, random: Random) -> Iterator[tuple[str, str]]:
    inner = text.strip()
    if not inner:
        yield "text where there was none", "something"
        return
    start = text.index(inner)
    letter = next(letter for letter in "qxzjQXZJ§" if letter not in text)
    for _ in range(2):
        at = start + random.randrange(len(inner))
        yield "a letter changed", text[:at] + letter + text[at + 1 :]
        yield "a letter inserted", text[:at] + letter + text[at:]
    if " " in inner:
        yield "white space doubled", text.replace(inner, inner.replace(" ", "  ", 1))
    if len(inner) > 3:
        yield "cut at its end", text[: start + len(inner) // 2]
        yield "cut at its beginning", inner[len(inner) // 2 :]
    yield "text added", f"{text} more"
    yield "emptied", ""


def _other_calls(calls: list[Message]) -> Iterator[tuple[str, list[Message]]]:
    for place, call in enumerate(calls):
        before, behind = calls[:place], calls[place + 1 :]
        function = call["function"]
        others = [
            ("tool renamed", {"name": function["name"] + "_"}),
            *(
                (f"arguments: {what}", {"arguments": arguments})
                for what, arguments in _other_arguments(function["arguments"])
            ),
        ]
        for what, changed in others:
            yield what, [*before, {**call, "function": {**function, **changed}}, *behind]
        yield "call left out", before + behind
        yield "call made twice", [*before, call, call, *behind]
        if behind:
            yield "calls swapped", [*before, behind[0], call, *behind[1:]]


def _other_arguments(arguments: str) -> Iterator[tuple[str, str]]:
    try:
        value = json.loads(arguments)
    except ValueError:
        yield "no JSON, and more of it", arguments + "1"
        yield "no JSON, mended", json.dumps({"a": arguments})
        return
    for what, other in _other_values(value):
        yield what, json.dumps(other)


def _other_values(value: Any) -> Iterator[tuple[str, Any]]:
    """Values that are not equal to it as JSON."""
    if isinstance(value, dict):
        yield "key added", {**value, "new_key": None}
        for key, item in value.items():
            rest = {name: other for name, other in value.items() if name != key}
            yield "key left out", rest
            yield "key renamed", {**rest, f"{key}_": item}
            for what, other in _other_values(item):
                yield what, {**value, key: other}
        return
    if isinstance(value, list):
        yield "item added", [*value, None]
        for place, item in enumerate(value):
            yield "item left out", value[:place] + value[place + 1 :]
            for what, other in _other_values(item):
                yield what, [*value[:place], other, *value[place + 1 :]]
        return
    yield "in a list", [value]
    yield "in an object", {"value": value}
    if isinstance(value, str):
        for other in (f"{value}!", f"{value} ", f" {value}", 1, None, True):
            yield "text changed", other
    elif value is None or isinstance(value, bool):
        for other in (None, True, False, 0, 1, "", "null", "true"):
            if other is not value:
                yield "constant changed", other
    else:
        for other in (True, False, None, str(value), f"{value}0"):
            yield "number to another type", other
        for other in (value + 1, value + 0.25):
            if other == other != value:
                yield "number changed", other
