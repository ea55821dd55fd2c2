"""Parses bodies as JSON, but only the part that no earlier body had.

Invariant: the result equals `json.loads` of the whole body.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from operator import is_
from typing import Any

from abut.gateway.dialects.dialect import HttpDialect, Like
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.body import Beginning, Body, BodyPiece, Field, Fields

# Each piece costs every call one more comparison, and joining them copies the whole.
_MOST_PIECES = 16
# Parsing short values one by one takes thirty times as long as parsing all at once in C. A body
# with more values than any known client sends is parsed at once, and its beginning is not kept.
_MOST_NEW_ELEMENTS = 4096
_MOST_FIELDS = 256
_SPACE = " \t\n\r"
_SPACES = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_VALUE_ENDS = (b" ", b"\t", b"\n", b"\r", b",", b"}")
_END = re.compile(rb"[ \t\n\r]*}[ \t\n\r]*\Z")
_UTF8 = ("utf-8", "surrogatepass")  # as `json.loads` decodes bytes
_value_at = json.JSONDecoder().raw_decode


def read_body(body: Body, dialect: HttpDialect) -> tuple[Any, Beginning | None]:
    """Return the JSON object of a body, and the beginning that the next one may repeat.

    Raises:
        Refusal: the body is not a JSON object.
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
        Refusal: the body is not a JSON object.
    """
    try:
        value = json.loads(whole)
    except UnicodeDecodeError as error:
        raise Refusal(f"the body is not UTF-8: {error}") from None
    except ValueError as error:
        raise Refusal(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Refusal("the body is nested too deeply") from None
    if not isinstance(value, dict):
        raise Refusal(f"the body must be a JSON object, got {type(value).__name__}")
    return value


def _read(body: Body, dialect: HttpDialect, *, same_end: bool = True) -> Beginning | None:
    """Return a body up to its last element; None if it is not an object with one list of elements.

    Args:
        body: to read.
        dialect: of the body.
        same_end: whether to check first that it ends like the previous body, because its fields may
            have many more bytes than its new elements.

    Raises:
        ValueError: it is not JSON.
        IndexError: it ends too early.
    """
    known, rest, key = body.known, body.rest, dialect.list_key
    same_end = same_end and known is not None and rest.endswith(known.fields.end)
    if known is None:
        text = rest.decode(*_UTF8)
        head, at = _head(text, key)
        if head is None or text[at] != "[":
            return None
        elements: list[Any] = []
    else:
        head, elements, at = known.fields.head, known.elements[:], 0
        # With the first byte of `end`, which is the `]`.
        new = rest[: len(rest) - len(known.fields.end) + 1] if same_end else rest
        text = new.decode(*_UTF8)
    # One by one and not as a list, because the last one is handled separately.
    last, at = (0, 0), _behind_space(text, at)
    for _ in range(_MOST_NEW_ELEMENTS):
        if text[at] != ("," if elements else "["):
            break
        value, end = _value_at(text, _behind_space(text, at + 1))
        elements.append(value)
        last, at = (last[1], end), _behind_space(text, end)
    if text[at] != "]" or not elements:
        return None
    if known is not None and same_end:
        if at < len(text) - 1:  # there are other fields before these
            return _read(body, dialect, same_end=False)
        fields = known.fields
    else:
        behind = rest[at if text.isascii() else len(text[:at].encode(*_UTF8)) :]
        tail = _tail(behind, key, () if known is None else known.fields.tail)
        if tail is None:
            return None
        same = known is not None and tail is known.fields.tail
        fields = known.fields if known is not None and same else Fields(head, tail, behind)
    digest = hashlib.sha256() if dialect.repeats_bytes else None
    before = (BodyPiece(b"", 0, 0, digest),) if known is None else known.pieces
    pieces = _pieces(before, rest, text, last, len(elements))
    like = None
    if known is not None and known.request is not None:
        like = Like(known.request, len(known.elements), fields is known.fields)
    return Beginning(dialect, pieces, elements, fields, like)


def _pieces(
    known: tuple[BodyPiece, ...], rest: bytes, text: str, last: tuple[int, int], elements: int
) -> tuple[BodyPiece, ...]:
    """Return the pieces of a beginning.

    Args:
        known: its first pieces; an empty piece if no piece is known.
        rest: the bytes after them.
        text: of these bytes.
        last: where the last element begins and ends in the text, including what precedes it.
        elements: how many elements there are.
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
    """Return the fields before the elements, and where the elements begin; None without them."""
    head: dict[str, Any] = {}
    at = _behind_space(text, 0)
    if text[at] != "{":
        return None, at
    for _ in range(_MOST_FIELDS):
        name, at = _key_at(text, _behind_space(text, at + 1))
        if name is None or name == key:
            return (None if name is None else head), at
        head[name], at = _value_at(text, at)
        at = _behind_space(text, at)
        if text[at] != ",":
            break
    return None, at


def _tail(end: bytes, key: str, known: Sequence[Field]) -> Sequence[Field] | None:
    """Return the fields after the elements; None if they are not JSON, or have more elements.

    Args:
        end: the bytes from the end of the elements on.
        key: of the elements.
        known: the fields of an earlier body, which are not parsed again if they are equal.
    """
    tail: list[Field] = []
    text = ""
    at = place = 1  # in bytes and in characters
    while (comma := _COMMA.match(end, at)) is not None:
        at, place = comma.end(), place + comma.end() - at
        field = known[len(tail)] if len(tail) < len(known) else None
        if len(tail) == _MOST_FIELDS:
            return None
        if field is None or not _has_field(end, at, field):
            text = text or end.decode(*_UTF8)
            name, value_place = _key_at(text, place)
            if name is None or name == key:
                return None
            value, behind = _value_at(text, value_place)
            chars = behind - place
            count = chars if text.isascii() else len(text[place:behind].encode(*_UTF8))
            field = Field(memoryview(end)[at : at + count], chars, name, value)
        tail.append(field)
        at, place = at + len(field.content), place + field.chars
    if _END.match(end, at) is None:
        return None
    return known if len(tail) == len(known) and all(map(is_, tail, known)) else tail


def _has_field(end: bytes, at: int, field: Field) -> bool:
    """Return whether bytes have this field at a position, and not a longer one."""
    behind = at + len(field.content)
    return end.startswith(field.content, at) and end[behind : behind + 1] in _VALUE_ENDS


def _key_at(text: str, at: int) -> tuple[str | None, int]:
    """Return a key and where its value begins; None if there is no key."""
    key, at = _value_at(text, at)
    at = _behind_space(text, at)
    if not isinstance(key, str) or text[at] != ":":
        return None, at
    return key, _behind_space(text, at + 1)


def _behind_space(text: str, at: int) -> int:
    if text[at] not in _SPACE:
        return at
    space = _SPACES.match(text, at)
    return at if space is None else space.end()
