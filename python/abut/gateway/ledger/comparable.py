"""What a client may write in two ways and means the same, in one form.

Invariant: two values have one form exactly where they are equal as JSON, numbers by their exact
value. `True` is no number, though Python says that it equals 1.
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
    """The form of a JSON value; the order of keys is none of it."""
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
    """The text of a content, its parts joined; None where it holds more than text.

    Args:
        content: of a message.
        joint: stands between two parts; None: several parts are not one text.
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
    """A call's arguments as an object; what is none, as its text."""
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
    """The calls of a message that are calls of functions at all."""
    calls = message.get("tool_calls")
    if not calls or not isinstance(calls, list):
        return []
    # `dict`, and not `Mapping`: what JSON gives, told in a tenth of the time.
    return [
        call for call in calls if isinstance(call, dict) and isinstance(call.get("function"), dict)
    ]


def names_of_calls(message: Mapping[str, Any]) -> dict[str, str]:
    """The tool that each of its calls names, by id."""
    return {
        id_: call["function"]["name"]
        for call in calls_of(message)
        if isinstance(id_ := call.get("id"), str)
    }


CallPosition: TypeAlias = tuple[int, int]
"""Of a call: the place of its message, and the how many-th of that message it is."""


class CallIds:
    """Which call an id means. An id that was given to two calls means none.

    Args:
        before: those of the messages before; what is added here is not added there.
    """

    def __init__(self, before: "CallIds | None" = None) -> None:
        self._before = {} if before is None else before._places
        self._places: dict[Any, CallPosition | None] = {}

    def add(self, message: Mapping[str, Any], at: int) -> None:
        """Note the calls of a message, the `at`-th of all, if it is an assistant's."""
        if message.get("role") != "assistant":
            return
        for number, call in enumerate(calls_of(message)):
            id_ = call.get("id")
            if isinstance(id_, str):
                is_new = id_ not in self._places and id_ not in self._before
                self._places[id_] = (at, number) if is_new else None

    def place(self, message: Message) -> CallPosition | None:
        """Of the call that a tool's message answers; None where that is none, or more than one."""
        id_ = message.get("tool_call_id") if message.get("role") == "tool" else None
        if not isinstance(id_, str):
            return None
        return self._places[id_] if id_ in self._places else self._before.get(id_)


def call_ids(messages: Iterable[Message]) -> CallIds:
    """Those of all calls in messages."""
    ids = CallIds()
    for at, message in enumerate(messages):
        ids.add(message, at)
    return ids


def comparable_message(
    message: Message, *, has_place: bool = False, joint: str | None = None
) -> Hashable:
    """The form of a message that is none of the policy's.

    Args:
        message: as the client sent it.
        has_place: whether the place of the call that it answers is known, and its id says nothing.
        joint: stands in the row between two parts of its text; None: parts are no one text.
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
    if has_place:
        del said["tool_call_id"]
    if len(said) == 2 and not calls and not has_place and isinstance(said.get("content"), str):
        return (said.get("role"), said["content"])
    return ("message", comparable(said), calls)


def comparable_call(call: Mapping[str, Any]) -> Hashable:
    """The form of a call, without its id."""
    function = call["function"]
    return (comparable(function.get("name")), comparable(arguments_of(function.get("arguments"))))
