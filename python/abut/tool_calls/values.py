"""The values in tool calls: JSON with one meaning only.

Invariant: nothing is guessed. What JSON does not define (NaN, a key twice) is an error.
"""

import json
import math
from typing import Any

from abut.tool_calls.call import Wrong
from abut.tool_calls.literals import PYTHON, skip_space

_WINDOW = 8192


def read_json(text: str, at: int) -> tuple[Any, int]:
    """The object or list that comes next, and where it ends; strictly, as `load_json`.

    It is read up to the first character that cannot follow, so texts full of broken values are read
    about twice: what goes on past the tag before another value has that tag inside a string, and
    from there on one of the two is inside a string where the other is not. At the next tag, one of
    them is broken.

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
                raise Wrong(at + error.pos, f"no JSON: {error.msg}") from None
        except (ValueError, RecursionError) as error:
            raise Wrong(at, f"no JSON: {_reason(error)}") from None
        else:
            return value, at + end


_LONGEST_WORD = 16  # a word or an escape that the window cuts is reported at its begin


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


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
                raise ValueError(f"the key {key!r} stands twice in one object")
            seen.add(key)
    return value


# One for all: to make it takes longer than to read a short call.
_JSON = json.JSONDecoder(parse_constant=_constant, parse_float=_finite, object_pairs_hook=_once)


def load_json(source: str) -> Any:
    """The JSON value, strictly: as RFC 8259 has it, and with one meaning only.

    Raises:
        ValueError: it is none, or holds NaN, an infinity, a number out of range, a key twice, half
            of a surrogate pair, or more levels than Python can hold.
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
    """The JSON value, or Python's: templates that lack a filter write `True` and `{'a': None}`.

    Raises:
        ValueError: it is neither.
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
        raise ValueError(f"character {end}: text behind the value")
    return value
