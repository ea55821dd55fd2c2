"""What a client may write in two ways and means the same, in one form.

Invariant: two values have one form exactly where they are equal as JSON, numbers by their exact
value. `True` is no number, though Python says that it equals 1.
"""

import json
from collections.abc import Hashable, Mapping
from typing import Any

from abut.messages import Message

_EMPTY_OF_OURS = ("refusal", "audio", "annotations", "function_call")
"""Keys that clients add to an assistant message, and that say nothing while they are empty."""


def form(value: Any) -> Hashable:
    """The form of a JSON value; the order of keys is none of it."""
    if value is None or isinstance(value, bool):
        return ("constant", value)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return ("number", _number(value))
    if isinstance(value, list | tuple):
        return ("list", tuple(map(form, value)))
    return ("object", frozenset((key, form(item)) for key, item in value.items()))


def _number(value: float) -> Any:
    if isinstance(value, float):
        if value != value:
            return "nan"
        if value.is_integer():
            return int(value)
    return value


def text_of(content: Any) -> str | None:
    """The text of a content, parts joined; None where it holds more than text."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        return None
    texts = [_text_of_part(part) for part in content]
    return None if None in texts else "".join(texts)  # type: ignore[arg-type]


_PART = {"type", "text", "cache_control", "annotations"}


def _text_of_part(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type", "text") != "text" or set(part) - _PART:
        return None
    text = part.get("text")
    return text if isinstance(text, str) else "" if text is None else None


def arguments_of(arguments: Any) -> Any:
    """A call's arguments as an object; what is none, as its text."""
    if isinstance(arguments, Mapping):  # as Ollama has them
        return arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def calls_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls of a message that are calls of functions at all."""
    calls = message.get("tool_calls")
    return [
        call
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
    ]


class CallIds:
    """Which call an id means: that of which assistant message, and the how many-th of it.

    An id that was given to two calls means none.
    """

    def __init__(self, other: "CallIds | None" = None) -> None:
        self._places: dict[Any, tuple[int, int] | None] = dict(other._places) if other else {}
        self._turns: int = other._turns if other else 0

    def add(self, message: Mapping[str, Any]) -> None:
        """Note the calls of a message of an assistant."""
        calls = calls_of(message)
        for number, call in enumerate(calls):
            id_ = call.get("id")
            if isinstance(id_, str):
                self._places[id_] = None if id_ in self._places else (self._turns, number)
        self._turns += bool(calls)

    def see(self, message: Mapping[str, Any]) -> None:
        """Note the calls of a message, if it is one of an assistant."""
        if message.get("role") == "assistant":
            self.add(message)

    def place(self, id_: Any) -> tuple[int, int] | None:
        """Of the call; None where there is none, or more than one."""
        return self._places.get(id_) if isinstance(id_, str) else None


def form_of_message(message: Message, ids: CallIds) -> Hashable:
    """The form of a message that is none of the policy's.

    Args:
        message: as the client sent it.
        ids: of the calls before it.
    """
    content = message.get("content")
    if len(message) == 2 and isinstance(content, str):
        return (message.get("role"), content)  # nearly all are of this kind
    said = {key: value for key, value in message.items() if value is not None}
    said.pop("cache_control", None)
    if (text := text_of(content)) is not None and not (
        isinstance(content, list) and len(content) > 1
    ):
        said["content"] = text
    forms: dict[str, Any] = {}
    if said.get("role") == "assistant":
        for key in _EMPTY_OF_OURS:
            if not said.get(key):
                said.pop(key, None)
        calls = calls_of(said)
        if len(calls) == len(said.get("tool_calls") or ()):
            said.pop("tool_calls", None)
            if calls:
                forms["tool_calls"] = tuple(map(form_of_call, calls))
    if said.get("role") == "tool" and (place := ids.place(said.get("tool_call_id"))) is not None:
        del said["tool_call_id"]
        forms["tool_call_id"] = ("call", *place)
    if len(said) == 2 and not forms and isinstance(said.get("content"), str):
        return (said.get("role"), said["content"])
    return ("message", form(said), form({}) if not forms else tuple(sorted(forms.items())))


def form_of_call(call: Mapping[str, Any]) -> Hashable:
    """The form of a call, without its id."""
    function = call["function"]
    return (form(function.get("name")), form(arguments_of(function.get("arguments"))))
