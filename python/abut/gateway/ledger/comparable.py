"""Comparable values: equal for all spellings of a message that mean the same.

Invariant: two JSON values have equal comparable values exactly if they are equal as JSON, numbers
by their exact value. `True` is not a number, though Python says that it equals 1. Images are equal
if their pixels are, however they were encoded.

A message that a client repeats is compared once: `KnownPrefix` keeps the messages that matched the
beginning of a branch. Comparing a later request with the branch then costs time only for its new
messages, plus one comparison of two lists.
"""

import itertools
import json
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import eq
from typing import Any, NamedTuple, TypeAlias

from abut.images import Image
from abut.messages import Message, images_of, with_hashes

_EMPTY_FIELDS = ("refusal", "audio", "annotations", "function_call")
"""Keys that clients add to an assistant message, and that mean nothing while they are empty."""


MOST_DEPTH = 100
"""The deepest nesting that the fields of a message may have."""


def comparable(value: Any) -> Hashable:
    """Return the comparable value of a JSON value; the order of keys does not matter."""
    if value is None or isinstance(value, bool):
        return ("constant", value)
    if isinstance(value, str):
        return value
    if isinstance(value, Image):
        return ("image", value.hash)
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
        joint: the text that joins two parts; None: several parts cannot be joined.
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


def texts_and_images(content: Any, joint: str | None = None) -> list[str | Image] | None:
    """Return the texts and images of a content, in order; None if it holds something else.

    Args:
        content: of a message.
        joint: the text that joins two adjacent text parts; None: they are not joined.
    """
    said: list[str | Image] = []
    for part in content if isinstance(content, list) else [{"text": content}]:
        (image,) = images_of([part]) or (None,)
        if image is not None:
            said.append(image)
        elif (text := _text_of_part(part)) is None:
            return None
        elif joint is not None and said and isinstance(before := said[-1], str):
            said[-1] = before + joint + text
        else:
            said.append(text)
    return said


_PART = {"type", "text", "cache_control", "annotations"}


def _text_of_part(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type", "text") != "text" or set(part) - _PART:
        return None
    text = part.get("text")
    return text if isinstance(text, str) else "" if text is None else None


def arguments_of(arguments: Any) -> Any:
    """Return a call's arguments as an object, or unchanged if they are not JSON of one."""
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
    """Return whether a JSON value is nested too deeply to compare it recursively."""
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
    """Return the function calls of a message."""
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
    """The call that each id refers to. An id that two calls share refers to neither.

    Args:
        before: the ids of the messages before. Ids that are added here are not added there.
    """

    def __init__(self, before: "CallIds | None" = None) -> None:
        self._before = {} if before is None else before._positions
        self._positions: dict[Any, CallPosition | None] = {}

    def add(self, message: Mapping[str, Any], at: int) -> None:
        """Add the calls of the message with the index `at`, if it is an assistant's."""
        if message.get("role") != "assistant":
            return
        for number, call in enumerate(calls_of(message)):
            id_ = call.get("id")
            if isinstance(id_, str):
                is_new = id_ not in self._positions and id_ not in self._before
                self._positions[id_] = (at, number) if is_new else None

    def call_of(self, message: Message) -> CallPosition | None:
        """Return the call that a tool's message answers; None if its id does not refer to one."""
        id_ = message.get("tool_call_id") if message.get("role") == "tool" else None
        if not isinstance(id_, str):
            return None
        return self._positions[id_] if id_ in self._positions else self._before.get(id_)


class NewCallIds:
    """Makes the ids of the calls of one rollout."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._numbers = itertools.count()

    def of(self, own: str | None) -> str:
        """Return an id that no other call of the rollout has and that every template accepts.

        Args:
            own: the id that the policy wrote; the first call with this id keeps it.
        """
        id_ = own
        while id_ is None or id_ in self._given:
            id_ = f"call{next(self._numbers):05d}"
        self._given.add(id_)
        return id_


def call_ids(messages: Iterable[Message]) -> CallIds:
    """Return the ids of all calls in messages."""
    ids = CallIds()
    for at, message in enumerate(messages):
        ids.add(message, at)
    return ids


def comparable_message(
    message: Message, *, has_call: bool = False, joint: str | None = None
) -> Hashable:
    """Return the comparable value of a client's own message.

    Args:
        message: as the client sent it.
        has_call: whether the call that it answers is known; if so, its id is ignored.
        joint: the text that joins two parts in the row; None: several parts cannot be joined.
    """
    content = message.get("content")
    if len(message) == 2 and isinstance(content, str):
        return (message.get("role"), content)  # nearly all are of this kind
    said = {key: value for key, value in message.items() if value is not None}
    said.pop("cache_control", None)
    if (text := text_of(content, joint)) is not None:
        said["content"] = text
    elif (parts := texts_and_images(content, joint)) is not None and images_of(content):
        said["content"] = parts
    calls: tuple[Hashable, ...] = ()
    if said.get("role") == "assistant":
        for key in _EMPTY_FIELDS:
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


class SeenMessages(NamedTuple):
    """The first messages of a request, which an earlier request had too."""

    messages: int = 0
    """How many there are."""
    ids: CallIds | None = None
    """The ids of the calls in them; grows as more messages become known."""
    answers: Sequence[CallPosition | None] = ()
    """For each of these messages, the call that it answers."""


class PrefixMatch(NamedTuple):
    """The result of comparing the beginning of a branch."""

    turns: int
    """How many answers matched."""
    behind_turn: int
    """How many messages there are, up to and including the last answer."""
    rewrites: dict[str, int]
    """How many answers the client changed, by rule."""
    same_ids: int
    """How many answers have calls with the gateway's ids."""


class KnownPrefix:
    """The messages that a client writes for the beginning of a branch.

    These are lists, because one loop in C compares two lists of mostly identical objects: 373
    messages in 9 microseconds. A tree, in which each entry has its spelling and a link to its
    predecessor, makes forks free but took 154 microseconds for as many messages.

    Attributes:
        messages: the k-th is how the client writes the k-th entry of the branch.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._keys: list[Any] = []
        self._rules: dict[int, str] = {}  # by the indices of answers that the client changed
        self._answers: list[int] = []
        self._same_ids: list[int] = []  # among the answers up to each
        self._ids = CallIds()
        self._calls: list[CallPosition | None] = []

    def common(self, messages: Sequence[Any]) -> int:
        """Return how many of the first messages are known."""
        keys = self._keys
        if messages[: len(keys)] == keys:  # a C loop over mostly identical objects
            return len(keys)
        equal = list(map(eq, messages, keys))
        return equal.index(False) if False in equal else len(equal)

    def seen(self, count: int) -> SeenMessages:
        """Return the first `count` messages as seen."""
        ids = self._ids if count == len(self.messages) else call_ids(self.messages[:count])
        return SeenMessages(count, ids, self._calls)

    def compared(self, count: int) -> PrefixMatch:
        """Return the result of comparing the first `count` messages."""
        turns = bisect_left(self._answers, count)
        rewrites: dict[str, int] = {}
        for place, rule in self._rules.items():
            if place < count:
                rewrites[rule] = rewrites.get(rule, 0) + 1
        behind_turn = self._answers[turns - 1] + 1 if turns else 0
        same_ids = self._same_ids[turns - 1] if turns else 0
        return PrefixMatch(turns, behind_turn, rewrites, same_ids)

    def learn(
        self, place: int, message: Message, *, ours: bool, rule: str = "", same_ids: bool = False
    ) -> None:
        """Note a client's spelling of the entry after the known ones.

        Args:
            place: the entry's index; known messages from this index on are forgotten.
            message: as the client writes it.
            ours: whether the entry is an answer of the policy.
            rule: the rule by which a changed answer matched.
            same_ids: whether its calls have the gateway's ids.
        """
        if place < len(self.messages):
            self._forget(place)
        self.messages.append(message)
        self._keys.append(message if _is_plain(message) else _Exact(message))
        if rule:
            self._rules[place] = rule
        self._calls.append(self._ids.call_of(message))
        self._ids.add(message, place)
        if ours:
            before = self._same_ids[-1] if self._same_ids else 0
            self._answers.append(place)
            self._same_ids.append(before + same_ids)

    def first(self, count: int) -> "KnownPrefix":
        """Return a copy that knows only the first `count` entries."""
        other = KnownPrefix()
        other.messages, other._keys = self.messages[:], self._keys[:]
        other._rules, other._answers = {**self._rules}, self._answers[:]
        other._same_ids, other._calls = self._same_ids[:], self._calls[:]
        other._forget(count)
        return other

    def _forget(self, place: int) -> None:
        """Forget the messages from an index on."""
        turns = bisect_left(self._answers, place)
        del self.messages[place:], self._keys[place:]
        self._rules = {at: rule for at, rule in self._rules.items() if at < place}
        del self._answers[turns:], self._same_ids[turns:]
        del self._calls[place:]
        self._ids = call_ids(self.messages)


class _Exact:
    """A message that equals another one only as JSON: to Python `True` equals 1."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._text = json.dumps(with_hashes(message))

    def __eq__(self, other: object) -> bool:
        if other is self._message:
            return True
        return isinstance(other, dict) and json.dumps(with_hashes(other)) == self._text

    __hash__ = None  # type: ignore[assignment]


def _is_plain(message: Message) -> bool:
    """Return whether a message has no number and no bool, so that Python's equality is JSON's."""
    values: list[Any] = [message]
    for value in values:  # grows while it is read
        if type(value) is dict:
            values += value.values()
        elif type(value) is list:
            values += value
        elif value is not None and type(value) is not str and type(value) is not Image:
            return False
    return True
