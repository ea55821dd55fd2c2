"""Reads calls that are written in a `CallForm`.

Invariant: the text is read from left to right in time linear in its length. What is found stands in
order, without overlap, and nothing in the text raises.
"""

import re
from collections.abc import Iterator

from abut.tool_calls.around import Around
from abut.tool_calls.bodies import Read, body_of
from abut.tool_calls.call import Found, ToolCall, Wrong
from abut.tool_calls.form import CallForm, NamedBody
from abut.tool_calls.literals import skip_space
from abut.tool_calls.patterns import NAME, Finder, core, loose, missing, tags, up_to_tag
from abut.tool_calls.schemas import Schemas


class FormReader:
    """The reader of one form; it keeps nothing of a text."""

    def __init__(self, form: CallForm) -> None:
        self._form = form
        self._body = body_of(form)
        self._around = Around(form.leads, form.control)
        self._begin = re.compile(loose(form.begin))
        self._open = re.compile(loose(form.open))
        self._close = re.compile(loose(form.close))
        self._end = re.compile(loose(form.end))
        self._between = re.compile(loose(form.between))
        self._has_begin = bool(form.begin.strip())
        self._is_list = not form.open.strip()
        call = "" if self._is_list else _call_begin(form)
        self._is_tagged = bool(call) or len(form.begin.strip()) > 1
        begin = core(up_to_tag(form.begin, form.ordinary)) if self._is_tagged else ""
        lead = tags(form.begin + form.open, form.ordinary)
        self._first_tag = (lead or [form.begin.strip() or form.open.strip()])[0]
        known = {self._first_tag, *tags(form.open, form.ordinary)[:1]}
        strays = "|".join(re.escape(tag) for tag in lead if tag not in known)
        end = core(form.end) if self._has_begin and not self._is_list else ""
        kinds = (("begin", begin), ("open", call), ("end", end), ("stray", strays))
        self._scan = re.compile("|".join(f"(?P<{k}>{p})" for k, p in kinds if p) or "(?!)")
        closers = tags(form.end if self._is_list else form.close, form.ordinary)[-1:]
        edges = [p for p in (begin, call) if p]
        edges += [f"(?P<close>{re.escape(tag)})" for tag in closers]
        self._edge = re.compile("|".join(edges) or "(?!)")
        inner = tags(form.close, form.ordinary)[:1]
        edges[len(edges) - len(closers) :] = [f"(?P<close>{re.escape(tag)})" for tag in inner]
        self._inner_edge = re.compile("|".join([*edges, strays] if strays else edges) or "(?!)")
        self._untagged_begin = re.compile(_untagged_begin(form))

    def __call__(self, text: str, schemas: Schemas) -> Iterator[Found]:
        """The places of calls, in order; see `Found`."""
        read = self._body(text, schemas)
        places = self._tagged(text, read) if self._is_tagged else self._untagged(text, read)
        free = 0
        opened = skip_space(text, 0) if self._form.text_open else -1
        is_opened = opened >= 0 and text.startswith(self._form.text_open, opened)
        for start, end, results in places:
            opened_end = opened + len(self._form.text_open)
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
                    wrong = self._missing(text, start, self._form.begin)
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
            elif not text[max(0, start - 256) : start].rstrip().endswith(self._first_tag[1:]):
                # Else the outer tag stands there, spelled and veiled: all of it is text.
                wrong = Wrong(start, f"expected {self._first_tag} before {match[0].strip()}")
                stray = inner.find(at)
                at = stray.end() if stray is not None and stray.lastgroup == "close" else at
                yield start, at, [wrong]

    def _call(self, text: str, start: int, read: Read) -> tuple[ToolCall, int]:
        opened = self._open.match(text, start)
        if opened is None:
            raise self._missing(text, start, self._form.open)
        call, end = read(opened.end())
        closed = self._close.match(text, end)
        if closed is None:
            raise self._missing(text, end, self._form.close)
        return call, closed.end()

    @staticmethod
    def _missing(text: str, at: int, wanted: str) -> Wrong:
        place, tag = missing(text, at, wanted)
        return Wrong(place, f"expected {tag}")

    def _to_next(self, text: str, end: int) -> int:
        """Where the next call begins, if only what separates calls stands before it."""
        if not self._form.between.strip():
            return end
        match = self._between.match(text, end)
        if match is None or self._scan.match(text, skip_space(text, match.end())) is None:
            return end
        return match.end()

    def _broken_end(self, edges: Finder, text: str, behind: int, wrong: Wrong) -> int:
        """Where a broken call ends: behind its close, or where the next one begins.

        A tag that nothing of a call follows is alone: in prose, it takes no prose with it.
        """
        edge = edges.find(behind if wrong.end is None else wrong.end)
        if edge is not None and edge.lastgroup == "close":
            return edge.end()
        if wrong.at <= skip_space(text, behind) and not text.startswith(("{", "["), wrong.at):
            return behind
        return len(text) if edge is None else edge.start()

    # ---- calls in a list, without tags of their own

    def _list(self, edges: Finder, text: str, start: int, at: int, read: Read) -> Iterator[Found]:
        """The calls of the list that began at `start`; its begin ends at `at`."""
        behind, count = at, 0
        while True:
            if (ended := self._end.match(text, at)) is not None and (count == 0 or self._form.end):
                yield start, ended.end(), []
                return
            place = skip_space(text, at)
            if count:
                separated = self._between.match(text, at)
                if separated is None:
                    between, end = self._form.between.strip(), self._form.end.strip()
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
        for mark in self._form.marks:
            if (at := text.find(mark)) >= 0:
                yield at, at + len(mark), []
                yield from self._run(text, at + len(mark), read)
                return
        free = 0
        for match in self._untagged_begin.finditer(text):
            if self._around.is_behind_control(text, match.start()):
                yield from self._run(text, match.start(), read)
                return
            if not self._form.text_before or match.start() < free:
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
                yield at, len(text), [self._missing(text, at, self._form.begin)]
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


def _call_begin(form: CallForm) -> str:
    """Matches the begin of a call: up to its first tag, with its name if that tells more."""
    inside = form.begin.strip()  # of other tags: what opens a call there needs no name to tell it
    if inside or tags(form.open, form.ordinary) or not isinstance(form.body, NamedBody):
        return core(up_to_tag(form.open, form.ordinary))
    return core(form.open) + NAME + loose(up_to_tag(form.body.header[0].text, form.ordinary))


def _untagged_begin(form: CallForm) -> str:
    """Matches the begin of calls that no tag begins; strictly: an answer may be JSON or a list."""
    # Searched for in whole texts: a run of whitespace or of letters is tried once, not at each of
    # its characters.
    begin = core(form.begin) + r"\s*+" if form.begin.strip() else ""
    if isinstance(form.body, NamedBody):
        begin = begin or f"(?<!{NAME.removesuffix('+')})"
        return rf"{begin}{NAME}{loose(form.body.header[0].text)}"
    if form.body.name is None:
        return begin + r"\{"
    keys = "|".join(map(re.escape, {form.body.arguments, "arguments", "parameters"}))
    either = rf'"{re.escape(form.body.name)}"\s*+:[^,{{}}\[\]]*+,\s*+"(?:{keys})"|"(?:{keys})"\s*+:'
    return rf"{begin}\{{\s*+(?:{either})"
