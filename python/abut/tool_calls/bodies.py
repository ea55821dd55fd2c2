"""Reads the body of a call: a name and arguments, in each of the ways that a `CallSyntax` knows."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from abut.tool_calls.literals import PYTHON, load_json, read_json, skip_space
from abut.tool_calls.parameters import ParametersReader
from abut.tool_calls.parsed import ToolCall, Wrong
from abut.tool_calls.patterns import SLOTS, loose
from abut.tool_calls.schemas import Schemas
from abut.tool_calls.syntax import CallSyntax, NamedBody, ObjectBody

Read: TypeAlias = Callable[[int], tuple[ToolCall, int]]
"""Reads the body at a position: returns the call and where it ends, or raises `Wrong`."""
Body: TypeAlias = Callable[[str, Schemas], Read]
"""Makes a `Read` for one text."""

_SCALAR = tuple('"-0123456789')  # begins a value that is no call, and ends itself
_ARGUMENTS = ("arguments", "parameters")  # models take the one for the other


def body_of(syntax: CallSyntax) -> Body:
    """Return the reader of the bodies of a syntax's calls."""
    if isinstance(syntax.body, ObjectBody):
        return _ObjectReader(syntax.body)
    return _NamedReader(syntax.body, syntax)


class _ObjectReader:
    def __init__(self, body: ObjectBody) -> None:
        self._body = body
        self._keys = (body.arguments, *(key for key in _ARGUMENTS if key != body.arguments))

    def __call__(self, text: str, schemas: Schemas) -> Read:
        def read(at: int) -> tuple[ToolCall, int]:
            value, end = _object(text, at, self._body.language)
            try:
                return self._call(value, at), end
            except Wrong as wrong:
                wrong.end = end
                raise

        return read

    def _call(self, value: Any, at: int) -> ToolCall:
        whole = value
        for key in self._body.path:
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, dict):
            what = (
                type(whole).__name__ if not self._body.path else f"no {'.'.join(self._body.path)}"
            )
            raise Wrong(at, f"a call is a JSON object, not {what}")
        if self._body.name is None:
            if len(value) != 1:
                raise Wrong(at, "a call is an object with one key, the function's name")
            ((name, arguments),) = value.items()
        else:
            name = value.get(self._body.name)
            given = [key for key in self._keys if key in value]
            if len(given) > 1:
                raise Wrong(at, f"the call has both {given[0]} and {given[1]}")
            arguments = value[given[0]] if given else None
        if not isinstance(name, str) or not name.strip():
            raise Wrong(at, "the call has no name")
        id_ = value.get(self._body.id) if self._body.id is not None else None
        if id_ is None and isinstance(whole, dict) and self._body.name is not None:
            id_ = whole.get("id")
        return ToolCall(name, arguments_of(arguments, at), id_ if isinstance(id_, str) else None)


def _object(text: str, at: int, language: str) -> tuple[Any, int]:
    """Read a JSON value, or a Python one if the template writes Python: models write both."""
    try:
        return read_json(text, at)
    except Wrong as wrong:
        if language == "json" and text[wrong.at : wrong.at + 1] not in _SCALAR:
            raise
    return PYTHON.read(text, at)


def arguments_of(value: Any, at: int) -> dict[str, Any]:
    """Return arguments given as an object, or as its JSON in a string; `{}` if there are none.

    Raises:
        Wrong: the value is neither.
    """
    if value is None:
        return {}
    if isinstance(value, str):  # OpenAI's API has them so
        try:
            value = load_json(value)
        except ValueError as error:
            raise Wrong(at, f"the arguments are a string that is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Wrong(at, f"the arguments are not a JSON object but {type(value).__name__}")
    return value


class _NamedReader:
    def __init__(self, body: NamedBody, syntax: CallSyntax) -> None:
        self._body = body
        patterns = []
        named = False
        for piece in body.header:
            slot = SLOTS[piece.slot]
            if piece.slot == "name" and named:
                slot = "(?P=name)"
            elif piece.slot != "number" or body.id_begin is not None:
                slot = f"(?P<{piece.slot}>{slot})"
            if piece.slot == "name" and not named and body.before_id:
                slot += f"(?:{loose(body.before_id)}\\s*+(?P<id>{SLOTS['id']}))?"
            named |= piece.slot == "name"
            patterns.append(slot + loose(piece.text) + r"\s*+")
        self._header = re.compile(r"\s*+" + "".join(patterns))
        self._steps = [
            (re.compile(r"\s*+" + "".join(patterns[:k])), piece.slot, piece.text.strip())
            for k, piece in enumerate(body.header)
        ]
        parameters = body.arguments
        self._parameters = None if parameters is None else ParametersReader(parameters, syntax)

    def __call__(self, text: str, schemas: Schemas) -> Read:
        parameters = None if self._parameters is None else self._parameters(text)

        def read(at: int) -> tuple[ToolCall, int]:
            header = self._header.match(text, at)
            if header is None:
                raise self._wrong_header(text, at)
            groups = header.groupdict()
            name, end = groups["name"], header.end()
            if parameters is not None:
                arguments, end = parameters(end, schemas.get(name))
            else:
                place = end
                value, end = _whole_arguments(text, end)
                arguments = arguments_of(value, place)
            id_ = groups.get("id")
            if self._body.id_begin is not None:
                id_ = f"{self._body.id_begin}{name}{self._body.header[0].text}{groups['number']}"
            return ToolCall(name, arguments, id_), end

        return read

    def _wrong_header(self, text: str, at: int) -> Wrong:
        """Return the error that says which piece of the header is missing, and where."""
        for pattern, slot, literal in reversed(self._steps):
            if (match := pattern.match(text, at)) is None:
                continue
            place = match.end()
            found = re.compile(SLOTS[slot]).match(text, place)
            if found is None:
                return Wrong(
                    place, "the call has no name" if slot == "name" else f"expected {slot}"
                )
            if slot == "name" and not literal and self._parameters is not None:
                literal = self._parameters.open
            return Wrong(found.end(), f"expected {literal}")
        return Wrong(at, "the call has no name")


def _whole_arguments(text: str, at: int) -> tuple[Any, int]:
    if text.startswith('"', skip_space(text, at)):  # the object's JSON, as a string
        return PYTHON.read(text, at)
    return read_json(text, at)
