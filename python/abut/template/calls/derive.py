"""Derive the syntax of a template's calls by rendering some.

Every `CallSyntax` found here is a guess until `parser` proves it: nothing here decides whether it
holds.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from abut.errors import TemplateError
from abut.template.calls.marks import call_marks
from abut.template.calls.written import (
    CONTENT,
    KEY,
    NAME,
    OTHER_KEY,
    OTHER_NAME,
    OTHER_VALUE,
    VALUE,
    CallProbe,
    Turns,
    call_id,
    common_prefix,
    common_suffix,
)
from abut.tool_calls.literals import PYTHON, load_json, read_json
from abut.tool_calls.parsed import Wrong
from abut.tool_calls.patterns import TAG
from abut.tool_calls.syntax import CallSyntax, NamedBody, ObjectBody, Parameters, Piece, Slot

_ONE: dict[str, Any] = {KEY: VALUE}
_TWO: dict[str, Any] = {KEY: OTHER_VALUE}


@dataclass(frozen=True)
class _Placed:
    """The position of a call's body in a string.

    Attributes:
        start: of its first slot, or of its object.
        end: after its object or its last value.
        kind: how it is written: `object`, or a name and arguments that are one `whole` object or
            `parameters`.
        header: the slots before the arguments, and the text after each.
        object: where it is one.
    """

    start: int
    end: int
    kind: Literal["object", "whole", "parameters"]
    header: tuple[Piece, ...] = ()
    object: ObjectBody | None = None


def derive_syntaxes(probe: CallProbe, turns: Turns) -> Iterator[CallSyntax]:
    """Yield the syntaxes that a template's calls may have, the likeliest first.

    Args:
        probe: gives calls to the template.
        turns: the text that the template writes in turns without calls.
    """
    written = probe.written([(NAME, _ONE)])
    for placed in _placings(written, 0, NAME, _ONE, 0):
        try:
            syntax = _syntax(probe, turns, written, placed)
        except TemplateError:
            continue
        if syntax is not None:
            yield syntax


def _syntax(probe: CallProbe, turns: Turns, written: str, placed: _Placed) -> CallSyntax | None:
    ordinary = turns.tags
    before, after, middle = written[: placed.start], written[placed.end :], None
    header = placed.header
    two = _two_calls(probe, placed.kind)
    if two is not None:
        both, first, second = two
        before, middle, after = (
            both[: first.start],
            both[first.end : second.start],
            both[second.end :],
        )
        header = _with_numbers(first.header, second.header)
    parameters = None
    if placed.kind == "parameters":
        found = _parameters(probe, header, after)
        if found is None:
            return None
        parameters, header, close = found
        after = after.removeprefix(close)
        middle = None if middle is None else middle.removeprefix(close)
    after = turns.before_end(after)
    lead = _behind_content(probe, placed)
    leads = []
    if lead is not None:
        shared = common_suffix(before, lead)
        leads.append(lead.removesuffix(shared).strip())
        before = shared
        if shared.strip().startswith(turns.text_close):
            leads.append(turns.text_close)
            before = shared.partition(turns.text_close)[2] if turns.text_close else shared
        close = _close_of_text(probe)
        if close and before.startswith(close):
            leads.append(close.strip())
            before = before.removeprefix(close)
    if middle is None:
        syntax = CallSyntax(ObjectBody(), open=before, close=after)
    else:
        begin, open_, close, between, end = _taken_apart(before, middle, after)
        if not begin.strip() and not TAG.sub("", end).strip():
            end = ""  # what ends such a turn
        syntax = CallSyntax(ObjectBody(), begin, open_, close, between, end)
    if lead is None:  # what stands between the prompt and calls stands before answers, too
        if middle is None or not syntax.begin.strip():
            syntax = replace(syntax, open=_behind_tags(syntax.open, ordinary))
        else:
            syntax = replace(syntax, begin=_behind_tags(syntax.begin, ordinary))
    syntax = replace(syntax, begin=syntax.begin if syntax.begin.strip() else "")
    header_again = turns.header.strip()
    if syntax.between.strip().endswith(header_again):  # each call is a message of its own
        leads.append(header_again)
    body = placed.object or NamedBody(header, parameters, id_begin=_id_begin(syntax.open, header))
    around = [syntax.begin, syntax.open, syntax.close, syntax.between, syntax.end]
    texts = [*around, *(piece.text for piece in header)]
    tags = frozenset(tag for text in texts for tag in TAG.findall(text) if tag in ordinary)
    return replace(
        syntax,
        body=body,
        ordinary=tags,
        text_before=lead is not None,
        text_open="" if lead is None else _open_of_text(probe, ordinary),
        leads=tuple(dict.fromkeys(filter(None, leads))),
    )


def _two_calls(probe: CallProbe, kind: str) -> tuple[str, _Placed, _Placed] | None:
    """Render two calls and find both; None if the template writes at most one."""
    try:
        both = probe.written([(NAME, _ONE), (OTHER_NAME, _TWO)])
    except TemplateError:
        return None
    for first in _placings(both, 0, NAME, _ONE, 0):
        if first.kind == kind:
            for second in _placings(both, first.end, OTHER_NAME, _TWO, 1):
                if second.kind == kind:
                    return both, first, second
    return None


def _placings(
    text: str, at: int, name: str, arguments: dict[str, Any], number: int
) -> Iterator[_Placed]:
    """Yield the positions at which the call may be after `at`."""
    named = text.find(name, at)
    ((key, value),) = arguments.items()
    if named < 0 or value not in text[named:]:
        return
    for match in re.finditer(r"\{", text[at : named + 1]):
        if (placed := _as_object(text, at + match.start(), name, arguments, number)) is not None:
            yield placed
            break
    for brace in re.finditer(r"\{", text[named:]):
        start = named + brace.start()
        whole, end, _ = _object_at(text, start)
        if whole == arguments:
            begin, header = _header(text, name, number, at, start)
            yield _Placed(begin, end, "whole", header)
            break
    keyed = text.find(key, named)
    valued = text.find(value, keyed)
    if 0 <= keyed < valued:
        begin, header = _header(text, name, number, at, keyed)
        yield _Placed(begin, valued + len(value), "parameters", header)


def _header(text: str, name: str, number: int, at: int, end: int) -> tuple[int, tuple[Piece, ...]]:
    """Return where the first slot begins, and all slots up to `end`."""
    slots: list[tuple[int, int, Slot]] = []
    for slot, word in (("name", name), ("id", call_id(number))):
        for match in re.finditer(re.escape(word), text[:end]):
            if match.start() >= at:
                slots.append((match.start(), match.end(), slot))  # type: ignore[arg-type]
    slots.sort()
    behind = [start for start, _, _ in slots[1:]] + [end]
    pieces = tuple(Piece(s, text[b:e]) for (_, b, s), e in zip(slots, behind, strict=True))
    return slots[0][0], pieces


def _object_at(text: str, at: int) -> tuple[Any, int, Literal["json", "python"]]:
    try:
        return *read_json(text, at), "json"
    except Wrong:
        pass
    try:
        return *PYTHON.read(text, at), "python"
    except Wrong:
        return None, at, "json"


def _as_object(
    text: str, at: int, name: str, arguments: dict[str, Any], number: int
) -> _Placed | None:
    whole, end, language = _object_at(text, at)
    path: tuple[str, ...] = ()
    inner = whole
    while isinstance(inner, dict):
        if inner == {name: arguments}:
            return _Placed(at, end, "object", object=ObjectBody(None, path=path, language=language))
        named = next((key for key, value in inner.items() if value == name), None)
        given = next((key for key, value in inner.items() if _is(value, arguments)), None)
        if named is not None and given is not None:
            ids = [key for key, value in {**whole, **inner}.items() if value == call_id(number)]
            body = ObjectBody(named, given, ids[0] if ids else None, path, language)
            return _Placed(at, end, "object", object=body)
        deeper = next((key for key, value in inner.items() if isinstance(value, dict)), None)
        if deeper is None:
            break
        path, inner = (*path, deeper), inner[deeper]
    return None


def _is(value: Any, arguments: dict[str, Any]) -> bool:
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError:
            return False
    return bool(value == arguments)


def _with_numbers(first: tuple[Piece, ...], second: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Return the header with a slot where two calls differ in a number."""
    pieces: list[Piece] = []
    for piece, other in zip(first, second, strict=False):
        numbers = zip(re.finditer(r"\d+", piece.text), re.findall(r"\d+", other.text), strict=False)
        counted = [match for match, number in numbers if match[0] != number]
        if not counted:
            pieces.append(piece)
            continue
        at = counted[0]
        pieces.append(Piece(piece.slot, piece.text[: at.start()]))
        pieces.append(Piece("number", piece.text[at.end() :]))
    return tuple(pieces)


def _id_begin(open_: str, header: tuple[Piece, ...]) -> str | None:
    """Return the text before the name in an id such as `functions.f:0`; None without such an id."""
    if [piece.slot for piece in header[:2]] != ["name", "number"]:
        return None
    begin = open_[max((match.end() for match in TAG.finditer(open_)), default=0) :].lstrip()
    return begin if re.fullmatch(r"[\w.]*:", begin + header[0].text) else None


def _parameters(
    probe: CallProbe, header: tuple[Piece, ...], after: str
) -> tuple[Parameters, tuple[Piece, ...], str] | None:
    """Return how arguments are written one by one, the header without them, and the last close."""
    pair = probe.written([(NAME, {KEY: VALUE, OTHER_KEY: OTHER_VALUE})])
    valued = pair.find(VALUE) + len(VALUE)
    later = pair.find(OTHER_KEY, valued)
    if valued < len(VALUE) or later < 0 or KEY in after:
        return None
    last = header[-1]
    begun, open_, close, between, _ = _taken_apart(last.text, pair[valued:later], after)
    marks = call_marks(probe, after.removeprefix(close))
    if marks is None:
        return None
    header = (*header[:-1], Piece(last.slot, begun))
    return Parameters(open_, marks, between), header, close


def _behind_content(probe: CallProbe, placed: _Placed) -> str | None:
    """Return the text between a turn's words and its first call; None if no words are there."""
    try:
        text = probe.written([(NAME, _ONE)], content=CONTENT)
    except TemplateError:
        return None
    at = text.find(CONTENT)
    if at < 0:
        return None
    for there in _placings(text, at, NAME, _ONE, 0):
        if there.kind == placed.kind:
            return text[at + len(CONTENT) : there.start]
    return None


def _open_of_text(probe: CallProbe, ordinary: Collection[str]) -> str:
    """Return the tag before the text next to calls, if no other text of a turn is after it."""
    head = probe.written([(NAME, _ONE)], content=CONTENT).partition(CONTENT)[0].strip()
    is_tag = TAG.fullmatch(head) is not None and head not in ordinary
    return head if is_tag else ""


def _close_of_text(probe: CallProbe) -> str:
    """Return the tag that closes the text before calls, if the template requires such text.

    Command A Reasoning writes that text as thinking, and a policy may call without thinking.
    """
    if not probe.content:
        return ""
    head, _, tail = probe.written([(NAME, _ONE)], content=CONTENT).partition(CONTENT)
    is_opened = re.search(rf"(?:{TAG.pattern})\s*\Z", head)
    close = re.match(rf"\s*(?:{TAG.pattern})", tail)
    return close[0] if is_opened and close else ""


def _taken_apart(before: str, middle: str, after: str) -> tuple[str, str, str, str, str]:
    """Return `begin`, `open`, `close`, `between` and `end` of two calls with these texts around."""
    open_ = common_suffix(before, middle)
    rest = middle.removesuffix(open_)
    close = common_prefix(rest, after)
    return (
        before.removesuffix(open_),
        open_,
        close,
        rest.removeprefix(close),
        after.removeprefix(close),
    )


def _behind_tags(text: str, ordinary: Collection[str]) -> str:
    """Return the text after the last of these tags."""
    ends = [match.end() for match in TAG.finditer(text) if match[0] in ordinary]
    return text[max(ends, default=0) :]


def asked_syntax(prompt: str, written: CallSyntax) -> CallSyntax | None:
    """Return the syntax of an example call in the prompt: a word, then calls in a list.

    Phi-4 mini is asked for `functools[{"name": [function name], "arguments": ...}, ...]`, and its
    template writes the objects alone. Lists with no word before them are not syntax of their own:
    that such a prompt asks for calls is not a reason to take each list in an answer for some.

    Args:
        prompt: the text that the template writes before the first user message.
        written: the syntax in which the template writes calls itself.
    """
    body = written.body
    if not isinstance(body, ObjectBody) or body.name is None or body.path:
        return None
    # What stands for the values is no JSON: the schemas of tools have names as well.
    example = re.compile(
        rf'(?<![\w<|])(\w+\[)\s*+\{{\s*+"{re.escape(body.name)}"\s*+:[^"{{}}]*,'
        rf'\s*+"{re.escape(body.arguments)}"\s*+:[^"{{}}]*\}}'
    )
    found = example.search(prompt)
    if found is None or found[1] in written.begin + written.open:
        return None
    asked = CallSyntax(replace(body, language="json"), begin=found[1], between=",", end="]")
    return replace(asked, ordinary=written.ordinary)
