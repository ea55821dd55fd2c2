"""The JSON of requests, each of which repeats the one before it.

Invariant: the result is that of `json.loads` for the whole body. The beginning of a body that
equals an earlier one byte for byte is not parsed again, and its messages are the same objects.

Two simpler ways were measured, for 141,000 bytes of which 16,000 are new. This one takes 0.04 ms.
Keeping a digest of the beginning in place of its bytes takes 0.1 ms; parsing the whole with orjson,
checking it and digesting it 0.33 ms. For 501,000 bytes it is 0.05, 0.27 and 1.5 ms.
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
# Each piece costs every call one more comparison, and joining them copies the whole.
_MOST_PIECES = 16
_SPACE = " \t\n\r"
_UTF8 = ("utf-8", "surrogatepass")  # as `json.loads` decodes bytes
_value_at = json.JSONDecoder().raw_decode


@dataclass
class Fields:
    """The fields around the messages: one object for all bodies in which they are equal.

    Attributes:
        head: the fields before the messages.
        tail: the text behind the messages.
        options: the fields in the tail.
    """

    head: dict[str, Any]
    tail: str
    options: dict[str, Any]


@dataclass
class Beginning:
    """A body up to its last message, and the values in it.

    Attributes:
        pieces: its bytes, in the pieces that came with one body after the other, so that none is
            copied for the next.
        end: the number of bytes.
        digest: of these bytes; the next body continues a copy.
        messages: at least one.
        fields: all other fields of the body.
        request: the request that was read from this body. Before it is read: the request of an
            earlier body with the same fields, whose messages are the first of these, if any.
    """

    pieces: tuple[bytes, ...]
    end: int
    digest: "hashlib._Hash"  # SHA-256: processors have instructions for it
    messages: list[Message]
    fields: Fields
    request: Any = None

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the whole body."""
        return {**self.fields.head, "messages": [*self.messages], **self.fields.options}

    def behind(self, chunks: Sequence[bytes]) -> bytes | None:
        """Return the bytes of another body behind this beginning; None if it begins otherwise."""
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
        chunks: the whole body.
        known: the known beginning; None if there is none.
        rest: the bytes behind the known beginning.
    """

    chunks: Sequence[bytes]
    known: Beginning | None
    rest: bytes

    @classmethod
    def of(cls, chunks: Sequence[bytes], known: Beginning | None = None) -> "Body":
        """Return a body, which begins with `known` if its bytes do."""
        rest = None if known is None else known.behind(chunks)
        return cls(chunks, None, b"".join(chunks)) if rest is None else cls(chunks, known, rest)

    @property
    def whole(self) -> bytes:
        """All of its bytes."""
        return self.rest if self.known is None else b"".join(self.chunks)

    def digest(self, beginning: Beginning | None) -> bytes:
        """Return a digest of the body, in time that does not grow with the part that is known.

        Args:
            beginning: of this body, if it has one.
        """
        if beginning is None:
            return hashlib.sha256(self.whole).digest()
        digest, known = beginning.digest.copy(), 0 if self.known is None else self.known.end
        digest.update(memoryview(self.rest)[beginning.end - known :])
        return digest.digest()


class Bodies:
    """The last body of each rollout, up to its last message.

    Args:
        most_bytes: in all. Beyond that, the rollout that was asked longest ago is forgotten, so
            its next body is parsed as a whole.
    """

    def __init__(self, most_bytes: int = _MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, Beginning] = OrderedDict()

    def body(self, rollout: str | None, chunks: Sequence[bytes]) -> Body:
        """Return a body with its known beginning, if it names a rollout that has one."""
        return Body.of(chunks, None if rollout is None else self._kept.get(rollout))

    def keep(self, rollout: str, beginning: Beginning) -> None:
        """Keep a beginning for the rollout's next body."""
        self.forget(rollout)
        self._kept[rollout] = beginning
        self._bytes += beginning.end
        while self._bytes > self._most_bytes:
            self.forget(next(iter(self._kept)))

    def forget(self, rollout: str) -> None:
        """Forget the beginning of a rollout."""
        if (known := self._kept.pop(rollout, None)) is not None:
            self._bytes -= known.end


def read_body(body: Body) -> tuple[Any, Beginning | None]:
    """Return the JSON object of a body, and the beginning that the next one may repeat.

    Raises:
        Refusal: the body is no JSON object.
    """
    try:
        beginning = _read(body)
    except (ValueError, IndexError, RecursionError):  # json.loads says what is wrong
        beginning = None
    if beginning is not None:
        return beginning.body, beginning
    return json_object(body.whole), None


def json_object(whole: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        Refusal: the body is no JSON object.
    """
    try:
        value = json.loads(whole)
    except UnicodeDecodeError as error:
        raise Refusal(f"the body is no UTF-8: {error}") from None
    except ValueError as error:
        raise Refusal(f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Refusal("the body is nested too deeply") from None
    if not isinstance(value, dict):
        raise Refusal(f"the body must be a JSON object, got {type(value).__name__}")
    return value


def _read(body: Body) -> Beginning | None:
    """Return a body up to its last message; None if it is no object with one list of messages.

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
    request = known.request if known is not None and fields is known.fields else None
    return Beginning(pieces, end_before + len(piece), digest, messages, fields, request)


def _head(text: str) -> tuple[dict[str, Any] | None, int]:
    """Return the fields before the messages and where these begin; None if there are none."""
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
    """Return the fields behind the messages; None if they are no JSON, or other messages."""
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
