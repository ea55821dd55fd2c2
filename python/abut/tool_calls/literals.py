"""Reads the values in tool calls: JSON, Python literals, and the notation of Gemma.

Invariants: nothing is guessed, so anything that JSON does not define (NaN, a key twice) is an
error. A reader stops at the first character that cannot follow, so it does not read a broken value
to the end of the text.
"""

import ast
import json
import math
import re
from typing import Any

from abut.tool_calls.parsed import Wrong

_SPACE = re.compile(r"\s*+")
_STRING = re.compile(r"'[^'\\]*+(?:\\.[^'\\]*+)*+'|\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"", re.DOTALL)
_NUMBER = re.compile(r"[-+]?+(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?+\d++)?+(?![\w.])")
_WORD = re.compile(r"(true|false|null|none)\b", re.IGNORECASE)
_BARE_KEY = re.compile(r"[^\s:,{}\[\]<>]++")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


class Literals:
    """Reads literals of Python, or of a notation with bare keys and quotes of its own (Gemma).

    Args:
        quote: the quote of strings, which have no escapes; None for Python's strings.
    """

    def __init__(self, quote: str | None = None) -> None:
        self._quote = quote
        value = rf"{re.escape(quote or '')}|[{{\[]|(?:{_NUMBER.pattern}|{_WORD.pattern})\s*+[,}}\]]"
        # Such a key may hold all that separates keys elsewhere: it ends where a value begins.
        # Without a limit, a text full of braces would be searched to its end from each of them.
        self._odd_key = re.compile(
            rf"((?:(?!{re.escape(quote or '')})[^\n]){{1,256}}?)\s*+(?=:\s*+(?:{value}))", re.I
        )

    def read(self, text: str, at: int) -> tuple[Any, int]:
        """Return the next value, and where it ends.

        Raises:
            Wrong: there is none.
        """
        try:
            return self._value(text, skip_space(text, at))
        except RecursionError:
            raise Wrong(at, "the value is nested too deeply") from None

    def _value(self, text: str, at: int) -> tuple[Any, int]:
        first = text[at : at + 1]
        if first == "{":
            return self._object(text, at)
        if first == "[" or first == "(":
            return self._items(text, at, "]" if first == "[" else ")")
        if (string := self._string(text, at)) is not None:
            return string
        if match := _NUMBER.match(text, at):
            return _number(match[0], at), match.end()
        if match := _WORD.match(text, at):
            return _WORDS[match[0].lower()], match.end()
        raise Wrong(at, "expected a value")

    def _string(self, text: str, at: int) -> tuple[str, int] | None:
        quote = self._quote
        if quote is None:
            match = _STRING.match(text, at)
            if match is not None:
                return _unquoted(match[0], at), match.end()
            if text.startswith(("'", '"'), at):
                raise Wrong(at, "the string is not closed")
            return None
        if not text.startswith(quote, at):
            return None
        end = text.find(quote, at + len(quote))
        if end < 0:
            raise Wrong(at, "the string is not closed")
        return text[at + len(quote) : end], end + len(quote)

    def _items(self, text: str, at: int, close: str) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = skip_space(text, at + 1)
        while not text.startswith(close, at):
            item, at = self._value(text, at)
            items.append(item)
            at = self._separator(text, at, close)
        return items, at + 1

    def _object(self, text: str, at: int) -> tuple[dict[str, Any], int]:
        value: dict[str, Any] = {}
        at = skip_space(text, at + 1)
        while not text.startswith("}", at):
            place = at
            key, at = self._key(text, at)
            if key in value:
                raise Wrong(place, f"the key {key!r} appears twice in one object")
            at = skip_space(text, at)
            if not text.startswith(":", at):
                raise Wrong(at, "expected :")
            value[key], at = self._value(text, skip_space(text, at + 1))
            at = self._separator(text, at, "}")
        return value, at + 1

    def _key(self, text: str, at: int) -> tuple[str, int]:
        if (string := self._string(text, at)) is not None:
            return string
        if self._quote is not None:
            if match := self._odd_key.match(text, at):
                return match[1].rstrip(), match.end()
            if match := _BARE_KEY.match(text, at):
                return match[0], match.end()
        raise Wrong(at, "expected a key")

    def _separator(self, text: str, at: int, close: str) -> int:
        at = skip_space(text, at)
        if text.startswith(",", at):
            return skip_space(text, at + 1)
        if not text.startswith(close, at):
            raise Wrong(at, f"expected , or {close}")
        return at


def _number(digits: str, at: int) -> int | float:
    try:
        if digits.lstrip("+-").isdecimal():
            return int(digits)
    except ValueError:  # more digits than Python converts
        raise Wrong(at, "the number has too many digits") from None
    if not math.isfinite(number := float(digits)):
        raise Wrong(at, f"the number {digits[:40]} is out of range")
    return number


def _unquoted(written: str, at: int) -> str:
    if "\\" not in written:
        return written[1:-1]
    # A newline is none of Python's, but models write it.
    source = written.replace("\r", "\\r").replace("\n", "\\n").replace("\x00", "\\x00")
    try:
        value = ast.literal_eval(source)
        value.encode()
    except (SyntaxError, ValueError):
        raise Wrong(at, "not a Python string") from None
    assert isinstance(value, str)
    return value


def skip_space(text: str, at: int) -> int:
    """Return where the whitespace at `at` ends."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


PYTHON = Literals()


_WINDOW = 8192


def read_json(text: str, at: int) -> tuple[Any, int]:
    """Return the next object or list, and where it ends; strictly, as `load_json` does.

    A value is read up to the first character that cannot follow. So even a string full of broken
    values is read about twice, not once for each value: a broken value that runs past the tag of
    the next one has this tag inside a string. From there on, one of the two is inside a string and
    the other is not, so one of them breaks at the next tag.

    Raises:
        Wrong: there is none.
    """
    at = skip_space(text, at)
    if text[at : at + 1] not in ("{", "["):
        raise Wrong(at, "expected a JSON object")
    window = _WINDOW
    while True:
        # An error of the decoder counts the lines before it: from the begin of the value only.
        piece = text[at : at + window]
        try:
            value, end = _JSON.raw_decode(piece)
            if piece.find("\\u", 0, end) >= 0:
                _check_surrogates(value)
        except json.JSONDecodeError as error:
            unterminated = error.msg.startswith("Unterminated")
            if at + window < len(text) and (unterminated or error.pos > window - _LONGEST_WORD):
                window *= 16
            elif unterminated or skip_space(piece, error.pos) == len(piece):
                raise Wrong(at, "the JSON value is not closed") from None
            else:
                raise Wrong(at + error.pos, f"not JSON: {error.msg}") from None
        except (ValueError, RecursionError) as error:
            raise Wrong(at, f"not JSON: {_reason(error)}") from None
        else:
            return value, at + end


_LONGEST_WORD = 16  # a word or an escape that the window cuts is reported at its begin


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"the number {digits[:40]} is out of range")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} appears twice in one object")
            seen.add(key)
    return value


# One for all: to make it takes longer than to read a short call.
_JSON = json.JSONDecoder(parse_constant=_constant, parse_float=_finite, object_pairs_hook=_once)


def load_json(source: str) -> Any:
    """Return the JSON value, strictly: as RFC 8259 defines it, and with one meaning only.

    Raises:
        ValueError: the text is not JSON, or it holds NaN, an infinity, a number out of range, a key
            twice, half of a surrogate pair, or more levels than Python can hold.
    """
    try:
        value = _JSON.decode(source)
        if "\\u" in source:
            _check_surrogates(value)
    except RecursionError as error:
        raise ValueError(_reason(error)) from None
    return value


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair") from None


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def load_literal(source: str) -> Any:
    """Return the JSON or Python value: templates without a filter write `True` and `{'a': None}`.

    Raises:
        ValueError: the text is neither.
    """
    try:
        return load_json(source)
    except ValueError:
        if not source.startswith(("[", "{", "(", "T", "F", "N")):
            raise
    try:
        value, end = PYTHON.read(source, 0)
    except Wrong as wrong:
        raise ValueError(str(wrong)) from None
    if source[end:].strip():
        raise ValueError(f"character {end}: text after the value")
    return value
