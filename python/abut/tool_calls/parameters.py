"""Reads arguments that are written one by one.

Invariant: text that is a value ends at the first close that is followed by what may follow it, so
it may spell a close; it does not go past the end of its call.
"""

import html
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from abut.tool_calls.call import Wrong
from abut.tool_calls.form import CallForm, Mark, Parameters
from abut.tool_calls.literals import PYTHON, Literals, skip_space
from abut.tool_calls.patterns import NAME, Finder, any_of, core, loose, missing, tags, up_to_tag
from abut.tool_calls.schemas import ToolSchema
from abut.tool_calls.values import load_literal

Schema: TypeAlias = ToolSchema | None
"""That of the function's parameters; None: not known."""

_LONGEST_KEY = 256  # of those that spell a mark: each place of the mark in them is tried


class ParametersReader:
    """Reads the parameters of one form.

    Attributes:
        open: what stands before a key.
    """

    def __init__(self, parameters: Parameters, form: CallForm) -> None:
        self.open = parameters.open.strip()
        tagged = bool(tags(self.open + parameters.marks[0].text))
        marks = sorted(parameters.marks, key=lambda mark: -len(mark.text))
        first = "".join({mark.text.strip()[:1] for mark in marks})
        punctuation = "" if tagged else r"(){}\[\],'\s"
        key = rf"(?P<key>[^\n<>\"{punctuation}{re.escape(first)}]*+)"
        one = (
            key
            + "(?:"
            + "|".join(f"(?P<m{k}>{_before(mark)})" for k, mark in enumerate(marks))
            + ")"
        )
        opened = core(parameters.open)
        between = core(parameters.between)
        if not tagged:  # some templates forget the comma
            between = f"(?:{between or ','})?+"
        self._first = re.compile(rf"\s*+{opened}{one}")
        self._next = re.compile(rf"\s*+{between}\s*+{opened}{one}")
        self._opener = re.compile(opened + one) if tagged else None
        self._close = re.compile(loose(form.close))
        self._call_close = form.close
        self._begun = re.compile(opened + key)
        self._mark = marks[-1].text
        follows = _follows(parameters, form, opened + one, tagged)
        self._marks = [_MarkReader(mark, follows, form) for mark in marks]
        self._key_ends = [re.compile(_before(mark)) for mark in marks]

    def __call__(self, text: str) -> Callable[[int, Schema], tuple[dict[str, Any], int]]:
        """What reads them from a place in this text, given the schemas, up to the call's close."""
        opener = None if self._opener is None else Finder(self._opener, text)
        values = [mark(text, opener) for mark in self._marks]

        def read(at: int, schema: Schema) -> tuple[dict[str, Any], int]:
            arguments: dict[str, Any] = {}
            pattern = self._first
            while (match := pattern.match(text, at)) is not None:
                key, place, end = match["key"].strip(), match.start(), match.end()
                kind = int(str(match.lastgroup)[1:])
                if schema is not None and key not in schema:
                    key, end = self._odd_key(match, self._key_ends[kind], schema)
                if not key:
                    raise Wrong(skip_space(text, place), "a parameter has no name")
                if key in arguments:
                    what = f"the parameter {key!r} stands twice in one call"
                    raise Wrong(skip_space(text, place), what)
                arguments[key], at = values[kind](end, key, schema)
                pattern = self._next
            if self._close.match(text, at) is None:
                raise self._wrong(text, at)
            return arguments, at

        return read

    @staticmethod
    def _odd_key(
        match: re.Match[str], mark: re.Pattern[str], schema: ToolSchema
    ) -> tuple[str, int]:
        """The key of the schema that stands where a key that is not in it was read, and its end.

        A template may write a key as it is, even one with a `>` in it (`<parameter=a>b>`), or with
        the entities of XML (`a&quot;b`). The schema tells. A key that it does not know at all
        stays as it was read.
        """
        key = match["key"].strip()
        if html.unescape(key) in schema:
            return html.unescape(key), match.end()
        text, start = match.string, match.start("key")
        line = text.find("\n", start, start + _LONGEST_KEY)
        limit = start + _LONGEST_KEY if line < 0 else line + 1
        for end in mark.finditer(text, match.end("key"), limit):
            if (longer := text[start : end.start()].strip()) in schema:
                return longer, end.end()
        return key, match.end()

    def _wrong(self, text: str, at: int) -> Wrong:
        """What is missing where there is neither a parameter nor the close of a call."""
        place = skip_space(text, at)
        if self.open and (opened := self._begun.match(text, place)) is not None:
            behind, tag = missing(text, opened.end(), self._mark)
            return Wrong(behind, f"expected {tag}")
        behind, tag = missing(text, place, self._call_close)
        if behind > place:
            return Wrong(behind, f"expected {tag}")
        return Wrong(place, f"expected {self.open or ','} or {tag}")


class _MarkReader:
    """Reads the values behind one mark."""

    def __init__(self, mark: Mark, follows: str, form: CallForm) -> None:
        self._mark = mark
        self._close = re.compile(loose(mark.close))
        self._literals = Literals(mark.quote) if mark.syntax == "notation" else PYTHON
        closing = mark.close.strip()
        # Without the whitespace before it, which makes the search for it three times as fast.
        self._space = mark.close[: len(mark.close) - len(mark.close.lstrip())]
        pattern = rf"{re.escape(closing)}(?=\s*+{follows})" if closing else f"(?={follows})"
        if ends := tags(form.close, form.ordinary):
            behind = any_of([core(up_to_tag(form.begin + form.open)), core(form.end), r"\Z"])
            pattern += rf"|(?P<last>{re.escape(ends[-1])}\s*+(?={behind}))"
        self._until = re.compile(pattern)
        self._follows = re.compile(rf"\s*+{follows}")

    def __call__(
        self, text: str, opener: Finder | None
    ) -> Callable[[int, str, Schema], tuple[Any, int]]:
        mark, close, space = self._mark, self._mark.close.strip(), self._space
        finder = Finder(self._until, text)

        def read_text(at: int, key: str, schema: Schema) -> tuple[Any, int]:
            found = finder.find(at)
            if found is None or found.lastgroup == "last":
                raise Wrong(at, f"expected {close or 'the end of a value'}")
            nested = None if opener is None else opener.find(at)
            if nested is not None and nested.start() < found.start():
                other = nested["key"].strip()
                if schema is None or other in schema:
                    raise Wrong(nested.start(), f"expected {close} before {nested[0].strip()}")
            value = text[at : found.start()].removesuffix(space)
            if not mark.others:
                return value, found.end()
            if mark.strings:
                return (value if schema is None else schema.typed(key, value)), found.end()
            try:
                return load_literal(value), found.end()
            except ValueError as error:
                raise Wrong(at, f"the value of {key!r}: {error}") from None

        def read_literal(at: int, key: str, schema: Schema) -> tuple[Any, int]:
            value, end = self._literals.read(text, at)
            closed = self._close.match(text, end)
            if closed is None:
                raise Wrong(skip_space(text, end), f"expected {close}")
            return value, closed.end()

        def read_bare(at: int, key: str, schema: Schema) -> tuple[Any, int]:
            try:
                value, end = PYTHON.read(text, at)
            except Wrong:
                return read_text(at, key, schema)
            if self._follows.match(text, end) is None:
                return read_text(at, key, schema)
            if isinstance(value, str):
                return value, end
            written = text[skip_space(text, at) : end]
            if schema is None or key not in schema:
                return value, end
            return schema.typed(key, written), end

        if mark.syntax == "text":
            return read_text
        return read_bare if mark.syntax == "bare" else read_literal


def _follows(parameters: Parameters, form: CallForm, parameter: str, tagged: bool) -> str:
    """Matches what may follow a value: the next parameter, or what closes the call."""
    if tagged:
        following = core(parameters.between + parameters.open)
    else:
        following = core(parameters.between) + r"\s*+" + re.sub(r"\?P<\w+>", "?:", parameter)
    if tags(form.close, form.ordinary):
        behind = core(up_to_tag(form.close, form.ordinary))
    else:  # punctuation alone: what follows it must be right, too
        again = core(form.between) + r"\s*+" + core(form.open) + NAME
        behind = core(form.close) + r"\s*+" + any_of([again, core(form.end), r"\Z"])
    return f"(?:{following}|{behind})"


def _before(mark: Mark) -> str:
    """Matches a mark; before text, the whitespace at its end is a part of it, if it is there."""
    space = mark.text[len(mark.text.rstrip()) :] if mark.syntax == "text" else ""
    return loose(mark.text) + (f"(?:{re.escape(space)})?+" if space else "")
