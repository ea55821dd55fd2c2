"""The JSON of requests, each of which repeats the one before it.

Invariant: what is read is what `json.loads` reads of the whole. What is equal byte for byte to the
beginning of an earlier body is not parsed again, and its messages are the same objects.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from abut.gateway.ledger.refusal import Refusal
from abut.messages import Message

_MOST_KEPT_BYTES = 2**28
# Each is one more comparison for every call, and to join them copies the whole.
_MOST_PIECES = 16
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
    """

    head: dict[str, Any]
    tail: str
    options: dict[str, Any]


@dataclass
class Beginning:
    """A body up to its last message, and what was read of it.

    Attributes:
        pieces: its bytes, as they came with one body after the other: none is copied for the next.
        end: so many bytes, the last message's included.
        digest: of these; one goes on from a copy.
        messages: one at least.
        fields: all else, of the whole body.
        noted: what was made of it, by who reads it; until then, of one before it that has the same
            fields and no message that is not among the first of these; None: nothing.
    """

    pieces: tuple[bytes, ...]
    end: int
    digest: "hashlib._Hash"  # SHA-256: processors have instructions for it
    messages: list[Message]
    fields: Fields
    noted: Any = None

    @property
    def body(self) -> dict[str, Any]:
        """What was read in all."""
        return {**self.fields.head, "messages": [*self.messages], **self.fields.options}

    def behind(self, chunks: Sequence[bytes]) -> bytes | None:
        """What of another body stands behind the same beginning; None where it has another."""
        number = at = 0
        for piece in self.pieces:
            begun = 0
            while begun < len(piece):
                if number == len(chunks):
                    return None
                chunk = chunks[number]
                count = min(len(piece) - begun, len(chunk) - at)
                part = piece if count == len(piece) else memoryview(piece)[begun : begun + count]
                if not chunk.startswith(part, at):
                    return None
                begun, at = begun + count, at + count
                if at == len(chunk):
                    number, at = number + 1, 0
        return b"".join((chunks[number][at:], *chunks[number + 1 :])) if chunks[number:] else b""


@dataclass(frozen=True)
class Body:
    """A body as it came in.

    Attributes:
        chunks: all of it.
        known: what it begins with; None: nothing is known of it.
        rest: what stands behind that.
    """

    chunks: Sequence[bytes]
    known: Beginning | None
    rest: bytes

    @classmethod
    def of(cls, chunks: Sequence[bytes], known: Beginning | None = None) -> "Body":
        """One that may begin with what is known."""
        rest = None if known is None else known.behind(chunks)
        return cls(chunks, None, b"".join(chunks)) if rest is None else cls(chunks, known, rest)

    @property
    def whole(self) -> bytes:
        """A copy of it."""
        return self.rest if self.known is None else b"".join(self.chunks)

    def digest(self, beginning: Beginning | None) -> bytes:
        """By which equal bodies are known, in time that does not grow with what they repeat.

        Args:
            beginning: its own, where it has one.
        """
        if beginning is None:
            return hashlib.sha256(self.whole).digest()
        digest, known = beginning.digest.copy(), 0 if self.known is None else self.known.end
        digest.update(memoryview(self.rest)[beginning.end - known :])
        return digest.digest()


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

    def body(self, rollout: str | None, chunks: Sequence[bytes]) -> Body:
        """A body of a rollout, where one is named, and what is known of it."""
        return Body.of(chunks, None if rollout is None else self._kept.get(rollout))

    def keep(self, rollout: str, beginning: Beginning) -> None:
        """Know it when the next one comes."""
        self.forget(rollout)
        self._kept[rollout] = beginning
        self._bytes += beginning.end
        while self._bytes > self._most_bytes:
            self.forget(next(iter(self._kept)))

    def forget(self, rollout: str) -> None:
        """Know nothing of a rollout any more."""
        if (known := self._kept.pop(rollout, None)) is not None:
            self._bytes -= known.end


def read_body(body: Body) -> tuple[Any, Beginning | None]:
    """The JSON object of a request, and what the next one may repeat of it.

    Raises:
        Refusal: it is none.
    """
    try:
        beginning = _read(body)
    except (ValueError, IndexError, RecursionError):  # what is wrong is said of the whole
        beginning = None
    if beginning is not None:
        return beginning.body, beginning
    try:
        value = json.loads(body.whole)
    except UnicodeDecodeError as error:
        raise Refusal(f"the body is no UTF-8: {error}") from None
    except ValueError as error:
        raise Refusal(f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Refusal("the body is nested too deeply") from None
    if not isinstance(value, dict):
        raise Refusal(f"the body must be a JSON object, got {type(value).__name__}")
    return value, None


def _read(body: Body) -> Beginning | None:
    """A body as its parts; None where it is not an object with one list of messages.

    Raises:
        ValueError: it is no JSON.
        IndexError: it ends too early.
    """
    messages: list[Message]
    before: tuple[bytes, ...]
    known, text = body.known, body.rest.decode(*_UTF8)
    if known is None:
        head, at = _head(text)
        if head is None or text[at] != "[":
            return None
        messages, end = _value_at(text, at)
        digest, before, end_before = hashlib.sha256(), (), 0
    else:
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
        head, digest = known.fields.head, known.digest.copy()
        before, end_before = known.pieces, known.end
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
    piece = body.rest[: len(body.rest) - len(text[last:].encode(*_UTF8))]
    digest.update(piece)
    pieces = (*before, piece)
    if len(pieces) > _MOST_PIECES:
        pieces = (b"".join(pieces),)
    noted = known.noted if known is not None and fields is known.fields else None
    return Beginning(pieces, end_before + len(piece), digest, messages, fields, noted)


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
