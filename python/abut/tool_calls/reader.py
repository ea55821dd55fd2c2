"""Reads calls that are written in a `CallSyntax`.

Invariant: the text is read from left to right in time linear in its length. The calls are found in
order and do not overlap, and nothing in the text raises.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from abut.tool_calls.bodies import Read, body_of
from abut.tool_calls.literals import skip_space
from abut.tool_calls.parsed import Found, ToolCall, Wrong
from abut.tool_calls.patterns import NAME, Finder, core, grouped, loose, missing, tags, up_to_tag
from abut.tool_calls.schemas import Schemas
from abut.tool_calls.syntax import CallSyntax, NamedBody


class CallReader:
    """Reads the calls of one syntax; it keeps nothing of a string."""

    def __init__(self, syntax: CallSyntax) -> None:
        self._syntax = syntax
        self._body = body_of(syntax)
        self._around = Around(syntax.leads, syntax.control)
        self._begin = re.compile(loose(syntax.begin))
        self._open = re.compile(loose(syntax.open))
        self._close = re.compile(loose(syntax.close))
        self._end = re.compile(loose(syntax.end))
        self._between = re.compile(loose(syntax.between))
        self._has_begin = bool(syntax.begin.strip())
        self._is_list = not syntax.open.strip()
        call = "" if self._is_list else _call_begin(syntax)
        self._is_tagged = bool(call) or len(syntax.begin.strip()) > 1
        begin = core(up_to_tag(syntax.begin, syntax.ordinary)) if self._is_tagged else ""
        lead = tags(syntax.begin + syntax.open, syntax.ordinary)
        self._first_tag = (lead or [syntax.begin.strip() or syntax.open.strip()])[0]
        known = {self._first_tag, *tags(syntax.open, syntax.ordinary)[:1]}
        strays = [re.escape(tag) for tag in lead if tag not in known]
        end = core(syntax.end) if self._has_begin and not self._is_list else ""
        scanned = {"begin": [begin], "open": [call], "end": [end], "stray": strays}
        self._scan = re.compile(grouped(scanned))
        close = tags(syntax.end if self._is_list else syntax.close, syntax.ordinary)[-1:]
        inner = tags(syntax.close, syntax.ordinary)[:1]
        edges = {"begin": [begin], "open": [call]}
        self._edge = re.compile(grouped({**edges, "close": [*map(re.escape, close)]}))
        inner_edges = {**edges, "close": [*map(re.escape, inner)], "stray": strays}
        self._inner_edge = re.compile(grouped(inner_edges))
        self._untagged_begin = re.compile(_untagged_begin(syntax))

    def __call__(self, text: str, schemas: Schemas) -> Iterator[Found]:
        """Yield the calls in a string, in order; see `Found`."""
        read = self._body(text, schemas)
        places = self._tagged(text, read) if self._is_tagged else self._untagged(text, read)
        free = 0
        opened = skip_space(text, 0) if self._syntax.text_open else -1
        is_opened = opened >= 0 and text.startswith(self._syntax.text_open, opened)
        for start, end, results in places:
            opened_end = opened + len(self._syntax.text_open)
            if is_opened and free == 0 and opened_end <= start:
                yield 0, opened_end, []
                free = opened_end
            yield self._around.begin(text, free, start), end, results
            free = end
        if free and (end := self._around.end(text, free)) > free:
            yield free, end, []

    # ---- calls that a tag begins

    def _tagged(self, text: str, read: Read) -> Iterator[Found]:
        edges, inner = Finder(self._edge, text), Finder(self._inner_edge, text)
        inside = not self._has_begin
        at = 0
        while (match := self._scan.search(text, at)) is not None:
            start, kind, at = match.start(), match.lastgroup, match.end()
            if kind == "begin":
                begun = self._begin.match(text, start)
                if begun is None:
                    wrong = self._missing(text, start, self._syntax.begin)
                    at = self._broken_end(edges, text, at, wrong)
                    yield start, at, [wrong]
                elif self._is_list:
                    for place in self._list(edges, text, start, begun.end(), read):
                        yield place
                        at = place[1]
                else:
                    inside, at = True, begun.end()
                    yield start, at, []
            elif kind == "end":
                if inside and self._has_begin:
                    inside = False
                    yield start, at, []
            elif kind == "open" and inside:
                try:
                    call, end = self._call(text, start, read)
                    yield start, end, [call]
                    at = self._to_next(text, end)
                    yield end, at, []
                except Wrong as error:
                    at = self._broken_end(edges, text, at, error)
                    yield start, at, [error]
            # The outer tag may stand there with another first character: a tag that was spelled and
            # not sampled is veiled, so all of it is text. 256: whitespace may be long.
            elif not text[max(0, start - 256) : start].rstrip().endswith(self._first_tag[1:]):
                wrong = Wrong(start, f"expected {self._first_tag} before {match[0].strip()}")
                stray = inner.find(at)
                at = stray.end() if stray is not None and stray.lastgroup == "close" else at
                yield start, at, [wrong]

    def _call(self, text: str, start: int, read: Read) -> tuple[ToolCall, int]:
        opened = self._open.match(text, start)
        if opened is None:
            raise self._missing(text, start, self._syntax.open)
        call, end = read(opened.end())
        closed = self._close.match(text, end)
        if closed is None:
            raise self._missing(text, end, self._syntax.close)
        return call, closed.end()

    @staticmethod
    def _missing(text: str, at: int, wanted: str) -> Wrong:
        place, tag = missing(text, at, wanted)
        return Wrong(place, f"expected {tag}")

    def _to_next(self, text: str, end: int) -> int:
        """Return where the next call begins, if only a separator of calls is before it."""
        if not self._syntax.between.strip():
            return end
        match = self._between.match(text, end)
        if match is None or self._scan.match(text, skip_space(text, match.end())) is None:
            return end
        return match.end()

    def _broken_end(self, edges: Finder, text: str, behind: int, wrong: Wrong) -> int:
        """Return where a broken call ends: after its close, or where the next one begins.

        A tag with nothing of a call after it ends at once: prose may name the tag, and the rest of
        the prose is content.
        """
        edge = edges.find(behind if wrong.end is None else wrong.end)
        if edge is not None and edge.lastgroup == "close":
            return edge.end()
        if wrong.at <= skip_space(text, behind) and not text.startswith(("{", "["), wrong.at):
            return behind
        return len(text) if edge is None else edge.start()

    # ---- calls in a list, without tags of their own

    def _list(self, edges: Finder, text: str, start: int, at: int, read: Read) -> Iterator[Found]:
        """Yield the calls of the list that begins at `start`; its begin ends at `at`."""
        behind, count = at, 0
        while True:
            if (ended := self._end.match(text, at)) is not None and (
                count == 0 or self._syntax.end
            ):
                yield start, ended.end(), []
                return
            place = skip_space(text, at)
            if count:
                separated = self._between.match(text, at)
                if separated is None:
                    between, end = self._syntax.between.strip(), self._syntax.end.strip()
                    wrong = Wrong(place, f"expected {between or 'a call'} or {end}")
                    break
                place = skip_space(text, separated.end())
            yield start, place, []
            start = place
            try:
                call, at = self._call(text, place, read)
                yield place, at, [call]
            except Wrong as error:
                if error.end is None:
                    wrong = error
                    break
                at = error.end
                yield place, at, [error]
            start, count = at, count + 1
        yield start, max(start, self._broken_end(edges, text, behind, wrong)), [wrong]

    # ---- calls that no tag begins

    def _untagged(self, text: str, read: Read) -> Iterator[Found]:
        for mark in self._syntax.marks:
            if (at := text.find(mark)) >= 0:
                yield at, at + len(mark), []
                yield from self._run(text, at + len(mark), read)
                return
        free = 0
        for match in self._untagged_begin.finditer(text):
            if self._around.is_behind_control(text, match.start()):
                yield from self._run(text, match.start(), read)
                return
            if not self._syntax.text_before or match.start() < free:
                continue
            found = list(self._run(text, match.start(), read))
            broken = any(isinstance(result, Wrong) for _, _, results in found for result in results)
            if not broken:
                free = found[-1][1]  # calls inside of these end before them, or with them
                if self._around.end(text, free) == len(text):
                    yield from found
                    return

    def _run(self, text: str, at: int, read: Read) -> Iterator[Found]:
        edges = Finder(self._edge, text)
        if self._has_begin:
            begun = self._begin.match(text, at)
            if begun is None:
                yield at, len(text), [self._missing(text, at, self._syntax.begin)]
            else:
                yield from self._list(edges, text, at, begun.end(), read)
            return
        while True:
            try:
                call, end = self._call(text, at, read)
            except Wrong as error:
                yield at, len(text), [error]
                return
            yield at, end, [call]
            separated = self._between.match(text, end)
            at = end if separated is None else skip_space(text, separated.end())
            if self._untagged_begin.match(text, skip_space(text, at)) is None:
                return
            yield end, at, []


def _call_begin(syntax: CallSyntax) -> str:
    """Return a pattern of the begin of a call: up to its first tag, and the name if it helps."""
    inside = syntax.begin.strip()  # of other tags: what opens a call there needs no name to tell it
    if inside or tags(syntax.open, syntax.ordinary) or not isinstance(syntax.body, NamedBody):
        return core(up_to_tag(syntax.open, syntax.ordinary))
    return core(syntax.open) + NAME + loose(up_to_tag(syntax.body.header[0].text, syntax.ordinary))


def _untagged_begin(syntax: CallSyntax) -> str:
    """Return a pattern of the begin of calls that no tag begins.

    It is strict, because an answer may be JSON or a list.
    """
    # Searched for in whole texts: a run of whitespace or of letters is tried once, not at each of
    # its characters.
    begin = core(syntax.begin) + r"\s*+" if syntax.begin.strip() else ""
    if isinstance(syntax.body, NamedBody):
        begin = begin or f"(?<!{NAME.removesuffix('+')})"
        return rf"{begin}{NAME}{loose(syntax.body.header[0].text)}"
    if syntax.body.name is None:
        return begin + r"\{"
    keys = "|".join(map(re.escape, {syntax.body.arguments, "arguments", "parameters"}))
    either = (
        rf'"{re.escape(syntax.body.name)}"\s*+:[^,{{}}\[\]]*+,\s*+"(?:{keys})"|"(?:{keys})"\s*+:'
    )
    return rf"{begin}\{{\s*+(?:{either})"


class Around:
    """Finds the texts around calls that belong to them: headers, closes, control tokens.

    Args:
        leads: texts that may be directly before calls.
        control: tokens that may be there, and between the last call and the end of the text.
    """

    def __init__(self, leads: Sequence[str], control: Collection[str]) -> None:
        self._control = frozenset(control)
        self._known = self._control.union(leads)
        self._any_known = tuple(self._known)
        lengths = {len(known) for known in self._known}
        self._lengths = sorted(lengths, reverse=True)  # of two that fit, the longer stands there

    def begin(self, text: str, free: int, start: int) -> int:
        """Return where the texts begin that belong to the calls at `start`, not before `free`."""
        while (before := self._known_before(text, free, start)) < start:
            start = before
        return start

    def end(self, text: str, at: int) -> int:
        """Return the end of the text if only control tokens are after the calls, else `at`."""
        place = skip_space(text, at)
        while place < len(text):
            size = next((n for n in self._lengths if text[place : place + n] in self._control), 0)
            if size == 0:
                return at
            place = skip_space(text, place + size)
        return place

    def is_behind_control(self, text: str, start: int) -> bool:
        """Return whether calls may begin here: first in the text, or after a control token."""
        end = _without_space(text, 0, start)
        return end == 0 or any(text[max(end - n, 0) : end] in self._control for n in self._lengths)

    def _known_before(self, text: str, free: int, start: int) -> int:
        end = _without_space(text, free, start)
        # Asked first, because usually none stands there, and to try each length takes 0.4 us.
        if text.endswith(self._any_known, free, end):
            for size in self._lengths:
                if free <= end - size and text[end - size : end] in self._known:
                    return end - size
        return start


def _without_space(text: str, begin: int, end: int) -> int:
    """Return where the whitespace before `end` begins, without a copy of a long text."""
    while end > begin and text[end - 1].isspace():
        end -= 1
    return end
