"""The JSON of requests, each of which repeats the one before it.

Invariant: what is read is what `json.loads` reads of the whole. What is equal byte for byte to the
beginning of an earlier body is not parsed again, and its messages are the same objects.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from abut.gateway.refusal import Refusal
from abut.messages import Message

_MOST_KEPT_BYTES = 2**28
_SPACE = " \t\n\r"
_UTF8 = ("utf-8", "surrogatepass")  # as `json.loads` decodes bytes
_value_at = json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class Beginning:
    """A body up to its last message, and what was read of it.

    Attributes:
        content: its bytes, the last message's included.
        head: what stands before the messages.
        messages: one at least.
        tail: what stood behind them, as text.
        options: the same, read.
    """

    content: bytes
    head: dict[str, Any]
    messages: list[Message]
    tail: str
    options: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        """What was read in all."""
        return {**self.head, "messages": [*self.messages], **self.options}


class Bodies:
    """The last body of each rollout, as far as a next one may repeat it.

    Args:
        most_bytes: of all that is kept; of more, the rollout that was asked longest ago is parsed
            again as a whole.
    """

    def __init__(self, most_bytes: int = _MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, Beginning] = OrderedDict()

    def beginning(self, rollout: str | None, content: bytes) -> Beginning | None:
        """What of a body is known."""
        known = None if rollout is None else self._kept.get(rollout)
        return known if known is not None and content.startswith(known.content) else None

    def keep(self, rollout: str, beginning: Beginning) -> None:
        """Know it when the next one comes."""
        self.forget(rollout)
        self._kept[rollout] = beginning
        self._bytes += len(beginning.content)
        while self._bytes > self._most_bytes:
            self.forget(next(iter(self._kept)))

    def forget(self, rollout: str) -> None:
        """Know nothing of a rollout any more."""
        if (known := self._kept.pop(rollout, None)) is not None:
            self._bytes -= len(known.content)


def read_body(content: bytes, known: Beginning | None = None) -> tuple[Any, Beginning | None]:
    """The JSON object of a request, and what the next one may repeat of it.

    Args:
        content: the body.
        known: what it begins with.

    Raises:
        Refusal: it is none.
    """
    try:
        beginning = _read(content, known)
    except (ValueError, IndexError, RecursionError):  # what is wrong is said of the whole
        beginning = None
    if beginning is not None:
        return beginning.body, beginning
    try:
        value = json.loads(content)
    except UnicodeDecodeError as error:
        raise Refusal(f"the body is no UTF-8: {error}") from None
    except ValueError as error:
        raise Refusal(f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Refusal("the body is nested too deeply") from None
    if not isinstance(value, dict):
        raise Refusal(f"the body must be a JSON object, got {type(value).__name__}")
    return value, None


def _read(content: bytes, known: Beginning | None) -> Beginning | None:
    """A body as its parts; None where it is not an object with one list of messages.

    Raises:
        ValueError: it is no JSON.
        IndexError: it ends too early.
    """
    messages: list[Message]
    if known is None:
        text = content.decode(*_UTF8)
        head, at = _head(text)
        if head is None or text[at] != "[":
            return None
        messages, end = _value_at(text, at)
    else:
        head = known.head
        text = content[len(known.content) :].decode(*_UTF8)
        at = _behind_space(text, 0)
        if text[at] == "]":
            messages, end = known.messages, at + 1
        elif text[at] == ",":
            text = "[" + text[at + 1 :]
            more, end = _value_at(text, 0)
            if not more:
                return None
            messages = known.messages + more
        else:
            return None
    if not messages:
        return None
    tail = text[end:]
    if known is not None and tail == known.tail:
        options = known.options
    elif (read := _tail(tail)) is None:
        return None
    else:
        options = read
    behind = text[len(text[: end - 1].rstrip(_SPACE)) :]
    return Beginning(
        content[: len(content) - len(behind.encode(*_UTF8))], head, messages, tail, options
    )


def _head(text: str) -> tuple[dict[str, Any] | None, int]:
    """What stands before the messages, and where these begin; None where they are not there."""
    head: dict[str, Any] = {}
    at = _behind_space(text, 0)
    if text[at] != "{":
        return None, at
    while True:
        key, at = _value_at(text, _behind_space(text, at + 1))
        at = _behind_space(text, at)
        if not isinstance(key, str) or text[at] != ":":
            return None, at
        at = _behind_space(text, at + 1)
        if key == "messages":
            return head, at
        head[key], at = _value_at(text, at)
        at = _behind_space(text, at)
        if text[at] != ",":
            return None, at


def _tail(text: str) -> dict[str, Any] | None:
    """What stands behind the messages; None where that is none, or other messages."""
    rest = text.strip(_SPACE)
    if rest == "}":
        return {}
    if rest[0] != ",":
        return None
    options: dict[str, Any] = json.loads("{" + rest[1:])
    return options if options and "messages" not in options else None


def _behind_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
