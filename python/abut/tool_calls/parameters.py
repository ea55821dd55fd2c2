"""Reads arguments that are written one by one.

Invariant: a value that is text ends at the first close with a string after it that may follow a
value, so that it may spell a close itself. It never goes past the end of its call.
"""

import html
import re
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from abut.tool_calls.literals import PYTHON, Literals, load_literal, skip_space
from abut.tool_calls.parsed import Wrong
from abut.tool_calls.patterns import NAME, Finder, any_of, core, loose, missing, tags, up_to_tag
from abut.tool_calls.schemas import ToolSchema
from abut.tool_calls.syntax import CallSyntax, Mark, Parameters

Schema: TypeAlias = ToolSchema | None
"""The schema of the function's parameters; None if it is not known."""


class ParametersReader:
    """Reads the parameters of one syntax.

    Args:
        parameters: how each is written.
        syntax: the calls around them.
        odd_keys: keys that look like no key of this syntax, such as one with a `>` in
            `<parameter=a>b>`. Only a schema can tell that they are some.

    Attributes:
        open: what is before a key.
    """

    def __init__(
        self, parameters: Parameters, syntax: CallSyntax, odd_keys: Collection[str] = ()
    ) -> None:
        self.open = parameters.open.strip()
        self._parameters, self._syntax, self._odd_keys = parameters, syntax, odd_keys
        self._with_odd_keys: dict[frozenset[str], ParametersReader] = {}
        tagged = bool(tags(self.open + parameters.marks[0].text))
        marks = sorted(parameters.marks, key=lambda mark: -len(mark.text))
        first = "".join({mark.text.strip()[:1] for mark in marks})
        punctuation = "" if tagged else r"(){}\[\],'\s"
        self._usual_key = re.compile(rf"[^\n<>\"{punctuation}{re.escape(first)}]*+")
        key = "|".join([*map(re.escape, sorted(odd_keys, key=len, reverse=True)), ""])
        key = f"(?P<key>{key}{self._usual_key.pattern})"
        mark_of_kind = "|".join(f"(?P<m{k}>{_before(mark)})" for k, mark in enumerate(marks))
        one = f"{key}(?:{mark_of_kind})"
        opened = core(parameters.open)
        between = core(parameters.between)
        if not tagged:  # some templates forget the comma
            between = f"(?:{between or ','})?+"
        self._first = re.compile(rf"\s*+{opened}{one}")
        self._next = re.compile(rf"\s*+{between}\s*+{opened}{one}")
        self._opener = re.compile(opened + one) if tagged else None
        self._close = re.compile(loose(syntax.close))
        self._call_close = syntax.close
        self._begun = re.compile(opened + key)
        self._mark = marks[-1].text
        follows = _follows(parameters, syntax, opened + one, tagged)
        self._marks = [_MarkReader(mark, follows, syntax) for mark in marks]
        self._any_mark = re.compile(mark_of_kind)
        self._written_marks = [mark.text.lstrip() for mark in marks]

    def __call__(self, text: str) -> Callable[[int, Schema], tuple[dict[str, Any], int]]:
        """Return a reader of the parameters at a place in this text, up to the call's close."""
        readers: dict[ParametersReader, Callable[[int, Schema], tuple[dict[str, Any], int]]] = {}

        def read(at: int, schema: Schema) -> tuple[dict[str, Any], int]:
            reader = self._knowing(schema)
            if reader not in readers:
                readers[reader] = reader._reading(text)
            return readers[reader](at, schema)

        return read

    def _knowing(self, schema: Schema) -> "ParametersReader":
        """Return a reader that knows the odd keys of a schema."""
        names = () if schema is None else schema.names
        odd = frozenset(name for name in names if not self._usual_key.fullmatch(name))
        if not odd:
            return self
        if odd not in self._with_odd_keys:
            reader = ParametersReader(self._parameters, self._syntax, odd)
            self._with_odd_keys[odd] = reader
        return self._with_odd_keys[odd]

    def _reading(self, text: str) -> Callable[[int, Schema], tuple[dict[str, Any], int]]:
        opener = None if self._opener is None else Finder(self._opener, text)
        values = [mark(text, opener) for mark in self._marks]

        def read(at: int, schema: Schema) -> tuple[dict[str, Any], int]:
            arguments: dict[str, Any] = {}
            pattern = self._first
            while (match := pattern.match(text, at)) is not None:
                key, mark = self._key(match, schema)
                place = skip_space(text, match.start())
                if not key:
                    raise Wrong(place, "a parameter has no name")
                if key in arguments:
                    raise Wrong(place, f"the parameter {key!r} appears twice in one call")
                arguments[key], at = values[_kind(mark)](mark.end(), key, schema)
                pattern = self._next
            if self._close.match(text, at) is None:
                raise self._wrong(text, at)
            return arguments, at

        return read

    def _key(self, match: re.Match[str], schema: Schema) -> tuple[str, re.Match[str]]:
        """Return the key that `match` found, and the match that ends after its mark.

        Raises:
            Wrong: several keys of the schema fit, and not exactly one of them has the mark after
                it that the template writes.
        """
        key, text, start = match["key"].strip(), match.string, match.start("key")
        if schema is None:
            return key, match
        fitting: dict[str, re.Match[str]] = {}
        for name in schema.names if self._odd_keys else ():
            if text.startswith(name, start):
                mark = self._any_mark.match(text, start + len(name))
                if mark is not None:
                    fitting[name] = mark
        if len(fitting) > 1:
            # Models may leave out the mark's newline, so `a` fits `<parameter=a>b>`, too. The
            # template writes it, so it tells `a>b` from an `a` whose value begins with `b>`.
            exact = {
                name: mark
                for name, mark in fitting.items()
                if mark[0].lstrip() == self._written_marks[_kind(mark)]
            }
            if len(exact) != 1:
                either = " or ".join(map(repr, sorted(fitting)))
                raise Wrong(start, f"the parameter may be {either}")
            fitting = exact
        for name, mark in fitting.items():
            return name, mark
        # A template may write a key with the entities of XML, `a&quot;b`.
        plain = html.unescape(key)
        return (plain if key not in schema and plain in schema else key), match

    def _wrong(self, text: str, at: int) -> Wrong:
        """Return the error for a string that is neither a parameter nor the close of a call."""
        place = skip_space(text, at)
        if self.open and (opened := self._begun.match(text, place)) is not None:
            behind, tag = missing(text, opened.end(), self._mark)
            return Wrong(behind, f"expected {tag}")
        behind, tag = missing(text, place, self._call_close)
        if behind > place:
            return Wrong(behind, f"expected {tag}")
        return Wrong(place, f"expected {self.open or ','} or {tag}")


class _MarkReader:
    """Reads the values after one mark."""

    def __init__(self, mark: Mark, follows: str, syntax: CallSyntax) -> None:
        self._mark = mark
        self._close = re.compile(loose(mark.close))
        self._literals = Literals(mark.quote) if mark.values == "notation" else PYTHON
        closing = mark.close.strip()
        # Without the whitespace before it, which makes the search for it three times as fast.
        self._space = mark.close[: len(mark.close) - len(mark.close.lstrip())]
        pattern = rf"{re.escape(closing)}(?=\s*+{follows})" if closing else f"(?={follows})"
        if ends := tags(syntax.close, syntax.ordinary):
            behind = any_of([core(up_to_tag(syntax.begin + syntax.open)), core(syntax.end), r"\Z"])
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

        if mark.values == "text":
            return read_text
        return read_bare if mark.values == "bare" else read_literal


def _follows(parameters: Parameters, syntax: CallSyntax, parameter: str, tagged: bool) -> str:
    """Return a pattern of the text that may follow a value: a parameter, or the call's close."""
    if tagged:
        following = core(parameters.between + parameters.open)
    else:
        following = core(parameters.between) + r"\s*+" + re.sub(r"\?P<\w+>", "?:", parameter)
    if tags(syntax.close, syntax.ordinary):
        behind = core(up_to_tag(syntax.close, syntax.ordinary))
    else:  # punctuation alone: what follows it must be right, too
        again = core(syntax.between) + r"\s*+" + core(syntax.open) + NAME
        behind = core(syntax.close) + r"\s*+" + any_of([again, core(syntax.end), r"\Z"])
    return f"(?:{following}|{behind})"


def _kind(match: re.Match[str]) -> int:
    """Return the number of the mark that matched: its group is named after it."""
    return int(str(match.lastgroup)[1:])


def _before(mark: Mark) -> str:
    """Return a pattern of a mark; whitespace at its end belongs to it only before text."""
    space = mark.text[len(mark.text.rstrip()) :] if mark.values == "text" else ""
    return loose(mark.text) + (f"(?:{re.escape(space)})?+" if space else "")
