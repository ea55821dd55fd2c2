"""The JSON of requests, each of which repeats the one before it.

Invariant: the result is that of `json.loads` for the whole body. Of a body that begins as an
earlier one did, byte for byte, that part is not parsed again, and its elements are the same
objects. An element is a message, or what a dialect has in its place.

The last element alone may differ from that of the earlier body: Claude Code moves a mark for a
cache from its last message to the next.

Two simpler ways were measured, for 141,000 bytes of which 16,000 are new. This one takes 0.04 ms.
Keeping a digest of the beginning in place of its bytes takes 0.1 ms; parsing the whole with orjson,
checking it and digesting it 0.33 ms. For 501,000 bytes it is 0.05, 0.27 and 1.5 ms.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, NamedTuple

from abut.gateway.dialects.dialect import HttpDialect, Like
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.refusal import Refusal

_MOST_KEPT_BYTES = 2**28
# Each piece costs every call one more comparison, and joining them copies the whole.
_MOST_PIECES = 16
_SPACE = " \t\n\r"
_VALUE_END = (*_SPACE, ",", "}")
_UTF8 = ("utf-8", "surrogatepass")  # as `json.loads` decodes bytes
_value_at = json.JSONDecoder().raw_decode


class Field(NamedTuple):
    """One field of a body.

    Attributes:
        text: its key and its value, as the body has them.
        key: its key.
        value: its value.
    """

    text: str
    key: str
    value: Any


@dataclass(frozen=True)
class Fields:
    """The fields around the elements: one object for all bodies in which they are equal.

    Attributes:
        head: the fields before the elements.
        tail: the fields behind the elements.
    """

    head: dict[str, Any]
    tail: Sequence[Field]


class BodyPiece(NamedTuple):
    """A part of a body.

    Attributes:
        content: its bytes.
        elements: how many elements there are up to its end.
        end: how many bytes.
        digest: of these bytes, which the next body continues; None if its dialect needs none.
    """

    content: bytes
    elements: int
    end: int
    digest: "hashlib._Hash | None"  # SHA-256: processors have instructions for it


@dataclass
class Beginning:
    """A body up to its last element, and the values in it.

    Attributes:
        dialect: of the body.
        pieces: its bytes, in the pieces that came with one body after the other, so that none is
            copied for the next. If one body had more than one element, its last is a piece.
        elements: at least one.
        fields: all other fields of the body.
        like: what is known of an earlier body that it repeats, until it is read.
        request: the request that was read from this body; None until it is read.
    """

    dialect: HttpDialect
    pieces: tuple[BodyPiece, ...]
    elements: list[Any]
    fields: Fields
    like: Like | None = None
    request: AgentRequest | None = None

    @property
    def end(self) -> int:
        """The number of bytes."""
        return self.pieces[-1].end

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the whole body."""
        body = {**self.fields.head, self.dialect.list_key: [*self.elements]}
        for field in self.fields.tail:
            body[field.key] = field.value
        return body

    def behind(self, chunks: Sequence[bytes]) -> "tuple[Beginning, bytes] | None":
        """Return how much of this beginning another body has, and the bytes behind that.

        Returns:
            this beginning, or that without its last piece; None if the body has neither.
        """
        number = at = 0
        for place, (piece, *_) in enumerate(self.pieces):
            begun, before = 0, (number, at)
            while begun < len(piece):
                chunk = chunks[number] if number < len(chunks) else b""
                count = min(len(piece) - begun, len(chunk) - at)
                part = piece if count == len(piece) else memoryview(piece)[begun : begun + count]
                if number == len(chunks) or not chunk.startswith(part, at):
                    shorter = self._without_last_piece if place == len(self.pieces) - 1 else None
                    return None if shorter is None else (shorter, _behind(chunks, *before))
                begun, at = begun + count, at + count
                if at == len(chunk):
                    number, at = number + 1, 0
        return self, _behind(chunks, number, at)

    @property
    def _without_last_piece(self) -> "Beginning | None":
        if len(self.pieces) == 1:
            return None
        pieces = self.pieces[:-1]
        return replace(self, pieces=pieces, elements=self.elements[: pieces[-1].elements])


def _behind(chunks: Sequence[bytes], number: int, at: int) -> bytes:
    """Return the bytes of chunks from a place in one of them on."""
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
        found = None if known is None else known.behind(chunks)
        return cls(chunks, None, b"".join(chunks)) if found is None else cls(chunks, *found)

    @property
    def whole(self) -> bytes:
        """All of its bytes."""
        return self.rest if self.known is None else b"".join(self.chunks)

    def digest(self, beginning: Beginning | None) -> bytes:
        """Return a digest of the body, in time that does not grow with the part that is known.

        Args:
            beginning: of this body, if it has one.
        """
        if beginning is None or (begun := beginning.pieces[-1].digest) is None:
            return hashlib.sha256(self.whole).digest()
        known, digest = 0 if self.known is None else self.known.end, begun.copy()
        digest.update(memoryview(self.rest)[beginning.end - known :])
        return digest.digest()


class Bodies:
    """The last body of each rollout, up to its last element.

    Args:
        most_bytes: in all. Beyond that, the rollout that was asked longest ago is forgotten, so
            its next body is parsed as a whole.
    """

    def __init__(self, most_bytes: int = _MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, Beginning] = OrderedDict()

    def body(self, rollout: str | None, chunks: Sequence[bytes], dialect: HttpDialect) -> Body:
        """Return a body with its known beginning, if it names a rollout that has one."""
        known = None if rollout is None else self._kept.get(rollout)
        return Body.of(chunks, None if known is None or known.dialect is not dialect else known)

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


def read_body(body: Body, dialect: HttpDialect) -> tuple[Any, Beginning | None]:
    """Return the JSON object of a body, and the beginning that the next one may repeat.

    Raises:
        Refusal: the body is no JSON object.
    """
    try:
        beginning = _read(body, dialect)
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


def _read(body: Body, dialect: HttpDialect) -> Beginning | None:
    """Return a body up to its last element; None if it is no object with one list of elements.

    Raises:
        ValueError: it is no JSON.
        IndexError: it ends too early.
    """
    known, text, key = body.known, body.rest.decode(*_UTF8), dialect.list_key
    if known is None:
        head, at = _head(text, key)
        if head is None or text[at] != "[":
            return None
        elements: list[Any] = []
    else:
        head, elements, at = known.fields.head, known.elements[:], 0
    # One by one, and not as one list: the last has to be known from the others.
    last = (0, 0)
    at = _behind_space(text, at)
    while text[at] == ("," if elements else "["):
        value, end = _value_at(text, _behind_space(text, at + 1))
        elements.append(value)
        last = (last[1], end)
        at = _behind_space(text, end)
    if text[at] != "]" or not elements:
        return None
    tail = _tail(text, at + 1, key, () if known is None else known.fields.tail)
    if tail is None:
        return None
    same = known is not None and tail is known.fields.tail
    fields = known.fields if known is not None and same else Fields(head, tail)
    digest = hashlib.sha256() if dialect.repeats_bytes else None
    before = (BodyPiece(b"", 0, 0, digest),) if known is None else known.pieces
    pieces = _pieces(before, body.rest, text, last, len(elements))
    like = None
    if known is not None and known.request is not None:
        like = Like(known.request, len(known.elements), same)
    return Beginning(dialect, pieces, elements, fields, like)


def _pieces(
    known: tuple[BodyPiece, ...], rest: bytes, text: str, last: tuple[int, int], elements: int
) -> tuple[BodyPiece, ...]:
    """Return the pieces of a beginning.

    Args:
        known: its first pieces; an empty one if none is known.
        rest: the bytes behind them.
        text: of these bytes.
        last: where the last element begins and ends in the text, with what stands before it.
        elements: how many there are.
    """
    pieces, at = [*known], 0
    begin, end = last if text.isascii() else (len(text[:place].encode(*_UTF8)) for place in last)
    for count, place in ((elements - 1, begin), (elements, end)):
        if content := rest[at:place]:
            before, digest = pieces[-1], None
            if before.digest is not None:
                digest = before.digest.copy()
                digest.update(content)
            pieces.append(BodyPiece(content, count, before.end + len(content), digest))
            at = place
    if len(pieces) > _MOST_PIECES:
        joined = b"".join(piece.content for piece in pieces[:-1])
        pieces[:-1] = [pieces[-2]._replace(content=joined)]
    return tuple(piece for piece in pieces if piece.content)


def _head(text: str, key: str) -> tuple[dict[str, Any] | None, int]:
    """Return the fields before the elements and where these begin; None if there are none."""
    head: dict[str, Any] = {}
    at = _behind_space(text, 0)
    if text[at] != "{":
        return None, at
    while True:
        name, at = _key_at(text, _behind_space(text, at + 1))
        if name is None or name == key:
            return (None if name is None else head), at
        head[name], at = _value_at(text, at)
        at = _behind_space(text, at)
        if text[at] != ",":
            return None, at


def _tail(text: str, at: int, key: str, known: Sequence[Field]) -> Sequence[Field] | None:
    """Return the fields behind the elements; None if they are no JSON, or other elements.

    Args:
        text: of the body.
        at: where the elements end.
        key: of the elements.
        known: the fields of an earlier body, which are not parsed again where they are the same.
    """
    tail: list[Field] = []
    while text[at := _behind_space(text, at)] == ",":
        begin = _behind_space(text, at + 1)
        field = known[len(tail)] if len(tail) < len(known) else None
        at = begin + len(field.text) if field else begin
        if field is None or not (text.startswith(field.text, begin) and text[at] in _VALUE_END):
            name, at = _key_at(text, begin)
            if name is None or name == key:
                return None
            value, at = _value_at(text, at)
            field = Field(text[begin:at], name, value)
        tail.append(field)
    if text[at] != "}" or text[at + 1 :].strip(_SPACE):
        return None
    return known if len(tail) == len(known) and all(map(is_, tail, known)) else tail


def _key_at(text: str, at: int) -> tuple[str | None, int]:
    """Return a key and where its value begins; None if there is no key."""
    key, at = _value_at(text, at)
    at = _behind_space(text, at)
    if not isinstance(key, str) or text[at] != ":":
        return None, at
    return key, _behind_space(text, at + 1)


def _behind_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
