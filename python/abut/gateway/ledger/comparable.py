"""Comparable values: one value for all spellings of a message that mean the same.

Invariant: two JSON values have equal comparable values exactly if they are equal as JSON, numbers
by their exact value. `True` is not a number, though Python says that it equals 1.
"""

import json
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeAlias

from abut.messages import Message

_EMPTY_OF_OURS = ("refusal", "audio", "annotations", "function_call")
"""Keys that clients add to an assistant message, and that say nothing while they are empty."""


MOST_DEPTH = 100
"""How deeply the fields of a message may be nested."""


def comparable(value: Any) -> Hashable:
    """Return the comparable value of a JSON value; the order of keys does not count."""
    if value is None or isinstance(value, bool):
        return ("constant", value)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return ("number", _number(value))
    if isinstance(value, list | tuple):
        return ("list", tuple(map(comparable, value)))
    return ("object", frozenset((key, comparable(item)) for key, item in value.items()))


def _number(value: float) -> Any:
    if isinstance(value, float):
        if value != value:
            return "nan"
        if value.is_integer():
            return int(value)
    return value


def text_of(content: Any, joint: str | None = "") -> str | None:
    """Return the text of a content, its parts joined; None if it holds more than text.

    Args:
        content: of a message.
        joint: the text between two parts; None: several parts are not one text.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        return None
    texts = [_text_of_part(part) for part in content]
    if None in texts or (joint is None and len(texts) > 1):
        return None
    return (joint or "").join(texts)  # type: ignore[arg-type]


_PART = {"type", "text", "cache_control", "annotations"}


def _text_of_part(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type", "text") != "text" or set(part) - _PART:
        return None
    text = part.get("text")
    return text if isinstance(text, str) else "" if text is None else None


def arguments_of(arguments: Any) -> Any:
    """Return a call's arguments as an object, or as they came if they are not the JSON of one."""
    if isinstance(arguments, Mapping):  # as Ollama has them
        return arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and not is_deep(value) else arguments


def is_deep(value: Any) -> bool:
    """Return whether a JSON value is nested too deeply to compare it by Python's recursion."""
    level = [value]
    for _ in range(MOST_DEPTH):
        if not (level := [inner for outer in level for inner in _inside(outer)]):
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def calls_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the calls of a message that are calls of functions."""
    calls = message.get("tool_calls")
    if not calls or not isinstance(calls, list):
        return []
    # `dict`, and not `Mapping`: JSON gives dicts, and the check takes a tenth of the time.
    return [
        call for call in calls if isinstance(call, dict) and isinstance(call.get("function"), dict)
    ]


def names_of_calls(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the tool that each call of a message names, by the call's id."""
    return {
        id_: call["function"]["name"]
        for call in calls_of(message)
        if isinstance(id_ := call.get("id"), str)
    }


CallPosition: TypeAlias = tuple[int, int]
"""The position of a call: the index of its message, and its index among that message's calls."""


class CallIds:
    """The call that each id means. An id that two calls have means none of them."""

    def __init__(self) -> None:
        self._positions: dict[Any, CallPosition | None] = {}

    def add(self, message: Mapping[str, Any], at: int) -> None:
        """Add the calls of the message with the index `at`, if it is an assistant's."""
        if message.get("role") != "assistant":
            return
        for number, call in enumerate(calls_of(message)):
            id_ = call.get("id")
            if isinstance(id_, str):
                self._positions[id_] = None if id_ in self._positions else (at, number)

    def call_of(self, message: Message) -> CallPosition | None:
        """Return the call that a tool's message answers; None if its id means none."""
        id_ = message.get("tool_call_id") if message.get("role") == "tool" else None
        if not isinstance(id_, str):
            return None
        return self._positions.get(id_)


def comparable_message(
    message: Message, *, has_call: bool = False, joint: str | None = None
) -> Hashable:
    """Return the comparable value of a client's own message.

    Args:
        message: as the client sent it.
        has_call: whether the call that it answers is known; its id then does not count.
        joint: the text that the row has between two parts; None: several parts are not one text.
    """
    content = message.get("content")
    if len(message) == 2 and isinstance(content, str):
        return (message.get("role"), content)  # nearly all are of this kind
    said = {key: value for key, value in message.items() if value is not None}
    said.pop("cache_control", None)
    if (text := text_of(content, joint)) is not None:
        said["content"] = text
    calls: tuple[Hashable, ...] = ()
    if said.get("role") == "assistant":
        for key in _EMPTY_OF_OURS:
            if not said.get(key):
                said.pop(key, None)
        theirs = calls_of(said)
        if len(theirs) == len(said.get("tool_calls") or ()):
            said.pop("tool_calls", None)
            calls = tuple(map(comparable_call, theirs))
    if has_call:
        del said["tool_call_id"]
    if len(said) == 2 and not calls and not has_call and isinstance(said.get("content"), str):
        return (said.get("role"), said["content"])
    return ("message", comparable(said), calls)


def comparable_call(call: Mapping[str, Any]) -> Hashable:
    """Return the comparable value of a call, without its id."""
    function = call["function"]
    return (comparable(function.get("name")), comparable(arguments_of(function.get("arguments"))))


def json_key(message: Message) -> Any:
    """Return a value that equals exactly the messages that are equal to this one as JSON.

    It is the message itself, unless that has a number or a bool: to Python `True` equals 1.
    """
    return message if _is_plain(message) else _Exact(message)


class _Exact:
    """A message that equals another one only as JSON: to Python `True` equals 1."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._text = json.dumps(message)

    def __eq__(self, other: object) -> bool:
        if other is self._message:
            return True
        return isinstance(other, dict) and json.dumps(other) == self._text

    __hash__ = None  # type: ignore[assignment]


def _is_plain(message: Message) -> bool:
    """Return whether a message has no number and no bool, so that Python's equality is JSON's."""
    values: list[Any] = [message]
    for value in values:  # grows while it is read
        if type(value) is dict:
            values += value.values()
        elif type(value) is list:
            values += value
        elif value is not None and type(value) is not str:
            return False
    return True
