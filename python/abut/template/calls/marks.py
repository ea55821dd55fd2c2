"""The marks between keys and values: how a template writes values of each kind."""

import json
from typing import Any

from abut.errors import TemplateError
from abut.template.calls.written import KEY, NAME, VALUE, CallProbe
from abut.tool_calls.literals import Literals, load_literal
from abut.tool_calls.parsed import Wrong
from abut.tool_calls.patterns import tags
from abut.tool_calls.syntax import Mark

HARD = "a \"q\" 'r' \\ \\n & <b>é</b>\n{x}, y=1)"
"""A text that no writer of literals leaves as it is."""
OTHERS: tuple[Any, ...] = (7, 1.5, True, None, [1, {"s": "x"}], {"s": ["x", None]}, [], {})


def call_marks(probe: CallProbe, rest: str) -> tuple[Mark, ...] | None:
    """Find the text between keys and values, for each kind of value; None if it cannot be told.

    Args:
        probe: gives calls to the template.
        rest: the text after the close of the last value.
    """
    marks: list[Mark] = []
    for value in (VALUE, HARD):
        if (mark := _of_string(_behind_key(probe, value, rest), value)) is None:
            return None
        marks.append(mark)
    plain, hard = marks
    if hard.values == "literal":
        mark = _of_string(_behind_key(probe, VALUE, rest), VALUE, literal=True)
        if mark is None:
            return None
        marks = [mark]
    elif hard == plain:
        marks = [plain]
    others = []
    for value in OTHERS:
        mark = _of_other(_behind_key(probe, value, rest), value, plain.text)
        if mark is None:
            return None
        others.append(mark)
    for mark in others:
        same = [k for k, m in enumerate(marks) if (m.text, m.close) == (mark.text, mark.close)]
        if not same:
            marks.append(mark)
        elif mark.values == "notation":
            marks[same[0]] = mark
        elif not marks[same[0]].others:
            old = marks[same[0]]
            marks[same[0]] = Mark(old.text, old.close, old.strings, True, old.values)
    of_python = any(mark.text.rstrip("'\"").strip() == "=" for mark in marks)
    if of_python and all((mark.text.strip(), mark.close) != ("=", "") for mark in marks):
        marks.append(Mark("=", "", values="literal"))  # models write Python then, quotes and all
    return tuple(marks)


def _behind_key(probe: CallProbe, value: Any, rest: str) -> str:
    """Return the text between the key and `rest`."""
    written = probe.written([(NAME, {KEY: value})])
    behind = written[written.index(KEY, written.index(NAME)) + len(KEY) :]
    if not behind.endswith(rest):
        raise TemplateError(
            f"the template writes the argument {value!r} differently from other values"
        )
    return behind.removesuffix(rest)


def _of_string(behind: str, value: str, *, literal: bool = False) -> Mark | None:
    if not literal and (at := behind.find(value)) >= 0:
        text, close = behind[:at], behind[at + len(value) :]
        bare = not tags(text + close) and not close and text.strip()[-1:] not in ("'", '"')
        return Mark(text, close, others=False, values="bare" if bare else "text")
    for spelled in (json.dumps(value, ensure_ascii=False), json.dumps(value), repr(value)):
        if (at := behind.find(spelled)) >= 0:
            return Mark(behind[:at], behind[at + len(spelled) :], others=False, values="literal")
    return None


def _of_other(behind: str, value: Any, of_text: str) -> Mark | None:
    """Return the mark of a value that is not a string: JSON, Python or a notation of its own."""
    scalar = json.dumps(value)
    for spelled in (scalar, json.dumps(value, separators=(",", ":")), str(value)):
        at = behind.rfind(spelled)
        if at < 0:
            continue
        text, close = behind[:at], behind[at + len(spelled) :]
        is_text = bool(close.strip()) or bool(text.strip()[-1:] in ("'", '"'))
        try:
            if load_literal(spelled) != value:
                continue
        except ValueError:
            continue
        return Mark(text, close, strings=False, values="text" if is_text else "literal")
    for at in range(len(behind)):
        quote = of_text.removeprefix(behind[:at])
        if not of_text.startswith(behind[:at]) or not quote or behind[at] not in "{[":
            continue
        try:
            read, end = Literals(quote).read(behind, at)
        except Wrong:
            continue
        if read == value:
            text, close = behind[:at], behind[end:]
            return Mark(text, close, strings=False, values="notation", quote=quote)
    return None
