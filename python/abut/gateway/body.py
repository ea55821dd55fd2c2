"""The JSON of requests, each of which repeats the one before it.

Invariant: what is read is what `json.loads` reads of the whole. What is equal byte for byte to the
beginning of an earlier body is not parsed again, and its messages are the same objects.
"""

import hashlib
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


@dataclass
class Fields:
    """What stands around the messages: the same object for all bodies in which it is the same.

    Attributes:
        head: what stands before them.
        tail: what stands behind them, as text.
        options: the same, read.
        noted: what was made of them, by who reads them; None: nothing yet.
    """

    head: dict[str, Any]
    tail: str
    options: dict[str, Any]
    noted: Any = None


@dataclass(frozen=True)
class Beginning:
    """A body up to its last message, and what was read of it.

    Attributes:
        whole: the body, which is not copied.
        end: so many of its bytes, the last message's included.
        digest: of these; one goes on from a copy.
        messages: one at least.
        fields: all else, of the whole body.
    """

    whole: bytes
    end: int
    digest: hashlib.blake2b
    messages: list[Message]
    fields: Fields

    @property
    def body(self) -> dict[str, Any]:
        """What was read in all."""
        return {**self.fields.head, "messages": [*self.messages], **self.fields.options}

    def begins(self, content: bytes) -> bool:
        """Whether another body has the same beginning."""
        return content.startswith(memoryview(self.whole)[: self.end])


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
        return known if known is not None and known.begins(content) else None

    def keep(self, rollout: str, beginning: Beginning) -> None:
        """Know it when the next one comes."""
        self.forget(rollout)
        self._kept[rollout] = beginning
        self._bytes += len(beginning.whole)
        while self._bytes > self._most_bytes:
            self.forget(next(iter(self._kept)))

    def forget(self, rollout: str) -> None:
        """Know nothing of a rollout any more."""
        if (known := self._kept.pop(rollout, None)) is not None:
            self._bytes -= len(known.whole)


def digest_of(content: bytes, beginning: Beginning | None) -> bytes:
    """By which equal bodies are known, in time that does not grow with what they repeat.

    Args:
        content: the body.
        beginning: its own, where it has one.
    """
    if beginning is None:
        return hashlib.blake2b(content).digest()
    digest = beginning.digest.copy()
    digest.update(memoryview(content)[beginning.end :])
    return digest.digest()


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
        digest, digested = hashlib.blake2b(), 0
    else:
        text = content[known.end :].decode(*_UTF8)
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
        head, digest, digested = known.fields.head, known.digest.copy(), known.end
    if not messages:
        return None
    tail = text[end:]
    if known is not None and tail == known.fields.tail:
        fields = known.fields
    elif (options := _tail(tail)) is None:
        return None
    else:
        fields = Fields(head, tail, options)
    last = end - 1
    while last and text[last - 1] in _SPACE:
        last -= 1
    ended = len(content) - len(text[last:].encode(*_UTF8))
    digest.update(memoryview(content)[digested:ended])
    return Beginning(content, ended, digest, messages, fields)


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
