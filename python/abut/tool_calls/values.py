"""The values in tool calls: JSON with one meaning only, and text that a schema gives a type.

Invariant: nothing is guessed. What JSON does not define (NaN, a key twice) is an error, and text
stays text unless a schema says otherwise.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""For each tool the schema of each parameter."""

# A whole string, or one that is not closed (group 1 is empty), or a bracket. The quantifiers are
# possessive: an unclosed string is read once, not once from each of its characters.
_STRUCTURE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[{}\[\]]', re.DOTALL)
_SPACE = re.compile(r"\s*+")


class Wrong(Exception):
    """A call is not what its format asks for: the place, from 0 in the text, and the reason."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(f"character {at}: {what}")


class JsonValues:
    """JSON values in a text, each character of which is searched once for the end of a value.

    Where one call is broken, the search for its end may run far into the text. A call that begins
    in there is then searched only up to `limit`, the next place at which a call may end.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._searched = 0

    def value(self, start: int, limit: int) -> tuple[Any, int]:
        """The object or array that comes next, and where it ends.

        Raises:
            Wrong: there is none.
        """
        start = skip_space(self._text, start)
        if self._text[start : start + 1] not in ("{", "["):
            raise Wrong(start, "expected a JSON object")
        stop = limit if start < self._searched else len(self._text)
        depth = 0
        for match in _STRUCTURE.finditer(self._text, start, stop):
            if match[1] == "":
                break
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
            if depth == 0:
                self._searched = max(self._searched, match.end())
                return self._load(start, match.end()), match.end()
        self._searched = max(self._searched, stop)
        raise Wrong(start, "the JSON value is not closed")

    def _load(self, start: int, end: int) -> Any:
        try:
            return load_json(self._text[start:end])
        except json.JSONDecodeError as error:
            raise Wrong(start + error.pos, f"no JSON: {error.msg}") from None
        except ValueError as error:
            raise Wrong(start, f"no JSON: {error}") from None


def array_items(text: str, start: int) -> Iterator[tuple[int, int, Any]]:
    """Each item of the array that comes next, which `JsonValues` has read: where it is, and it."""
    at = skip_space(text, skip_space(text, start) + 1)
    while text[at] != "]":
        value, end = _JSON.raw_decode(text, at)
        yield at, end, value
        at = skip_space(text, end)
        if text[at] == ",":
            at = skip_space(text, at + 1)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"the number {digits[:40]} is out of range")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {key!r} stands twice in one object")
        value[key] = item
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
        if "\\ud" in source.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair") from None
    return value


def skip_space(text: str, at: int) -> int:
    """Where the whitespace at `at` ends."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def parameter_schemas(tools: Sequence[Any] | None) -> Schemas:
    """The schema of each parameter of each tool; with OpenAI's wrapper or without.

    Raises:
        TypeError: a tool is no JSON schema, but a function, say.
    """
    schemas: dict[str, Mapping[str, Any]] = {}
    for k, tool in enumerate(tools or ()):
        if not isinstance(tool, dict):
            raise TypeError(
                f"tools[{k}] is no JSON schema but {type(tool).__name__}\n"
                "hint: transformers.utils.get_json_schema makes the schema of a function"
            )
        function = tool.get("function", tool)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            schemas[function["name"]] = properties if isinstance(properties, dict) else {}
    return schemas


def typed(text: str, schema: Any) -> Any:
    """The text as one of the types of its schema; as it is where none fits."""
    types = _types(schema)
    if "null" in types and text in ("null", "None"):
        return None
    if "string" in types or not types:
        return text
    if "boolean" in types and text in ("true", "True", "false", "False"):
        return text in ("true", "True")
    try:
        value = load_json(text)
    except ValueError:
        return text
    if isinstance(value, float) and "number" not in types:
        value = _whole(text, value)  # to JSON Schema, 3.0 is an integer
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "integer": number and isinstance(value, int),
        "number": number,
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    return value if any(fits.get(name, False) for name in types) else text


def _whole(text: str, value: float) -> int | float:
    """The integer that the text is, exactly: 1e30 is not the float next to it."""
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent that Decimal cannot hold
        return value
    whole = int(exact)
    return whole if whole == exact else value


def _types(schema: Any) -> set[str]:
    """What the schema and the choices in it name; a choice may hold itself."""
    types: set[str] = set()
    seen: set[int] = set()
    left = [schema]
    while left:
        schema = left.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        declared = schema.get("type")
        names = declared if isinstance(declared, list) else [declared]
        types.update(name for name in names if isinstance(name, str))
        if schema.get("nullable"):
            types.add("null")
        for union in ("anyOf", "oneOf"):
            choices = schema.get(union)
            left.extend(choices if isinstance(choices, list) else ())
    return types
