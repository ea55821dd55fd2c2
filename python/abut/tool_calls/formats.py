"""One parser for each way in which model families write tool calls.

Invariant: a parser reads its text from left to right and never raises for what it holds. It yields
the places of calls, in order and without overlap, each with what stands there.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from abut.tool_calls.values import (
    JsonValues,
    Schemas,
    Wrong,
    array_items,
    load_json,
    skip_space,
    typed,
)


@dataclass(frozen=True)
class ToolCall:
    """One call, well formed."""

    name: str
    arguments: dict[str, Any]
    """JSON values. In `qwen3_coder` and `glm` they are text where no schema says what else."""
    id: str | None = None
    """Only where the model wrote one (Mistral)."""


Found: TypeAlias = tuple[int, int, Sequence[ToolCall | Wrong]]
"""First character, the one behind the last, and what stands there: nothing for a mere header."""


def _call(value: Any, at: int) -> ToolCall:
    """A call from its JSON object; OpenAI and Llama name the arguments differently."""
    if not isinstance(value, dict):
        raise Wrong(at, f"a call is a JSON object, not {type(value).__name__}")
    if "arguments" in value and "parameters" in value:
        raise Wrong(at, "the call has both arguments and parameters")
    name, id_ = value.get("name"), value.get("id")
    if not isinstance(name, str) or not name.strip():
        raise Wrong(at, "the call has no name")
    arguments = value.get("arguments", value.get("parameters"))
    return ToolCall(name, _arguments(arguments, at), id_ if isinstance(id_, str) else None)


def _arguments(value: Any, at: int) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):  # OpenAI's API has them as JSON inside a string
        try:
            value = load_json(value)
        except ValueError as error:
            raise Wrong(at, f"the arguments are a string that is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Wrong(at, f"the arguments are no JSON object but {type(value).__name__}")
    return value


def _hermes(text: str, schemas: Schemas) -> Iterator[Found]:
    tags = list(re.finditer(r"<(/?)tool_call>", text))
    values = JsonValues(text)
    free = 0
    for k, tag in enumerate(tags):
        if tag.start() < free or tag[1]:
            continue
        following = tags[k + 1] if k + 1 < len(tags) else None
        limit = following.start() if following else len(text)
        try:
            value, end = values.value(tag.end(), limit)
            close = skip_space(text, end)
            if not text.startswith("</tool_call>", close):
                raise Wrong(close, "expected </tool_call>")
            free = close + len("</tool_call>")
            yield tag.start(), free, [_call(value, tag.end())]
        except Wrong as wrong:
            # Up to the first tag: what a broken call says about its strings cannot be trusted.
            end = following.end() if following and following[1] else limit
            if end == limit and not text.startswith(("{", "["), skip_space(text, tag.end())):
                end = tag.end()  # the tag alone, in the middle of prose
            free = max(free, end)
            yield tag.start(), free, [wrong]


# A value ends where what must follow it follows: it may spell a tag itself. It does not go on past
# the last close of a call (group `last`): the next call would be taken for a part of it.
_TOOL_CALL = r"<tool_call>|</tool_call>(?=(?P<last>\s*+(?:<tool_call>|\Z))?)"
_QWEN3_CODER = re.compile(
    rf"{_TOOL_CALL}|<function=(?P<function>[^<>\n]*+)>|</function>"
    r"|<parameter=(?P<parameter>[^<>\n]*+)>|\n?</parameter>(?=\s*+(?:<parameter=|</function>))"
)
_GLM = re.compile(
    rf"{_TOOL_CALL}|</?arg_key>|<arg_value>|</arg_value>(?=\s*+(?:<arg_key>|</tool_call>))"
)


def _qwen3_coder(text: str, schemas: Schemas) -> Iterator[Found]:
    tags = _Tags(text, _QWEN3_CODER)
    while (opened := tags.find("<tool_call>")) is not None:
        try:
            name = _name(tags.directly("<function=")["function"], opened.end())
            arguments: dict[str, Any] = {}
            while (tag := tags.directly("<parameter=", "</function>"))[0] != "</function>":
                value = tags.value_before("</parameter>").removeprefix("\n")
                _add(arguments, tag["parameter"], value, schemas.get(name), tag.start())
            tags.directly("</tool_call>")
            yield opened.start(), tags.at, [ToolCall(name, arguments)]
        except Wrong as wrong:
            yield opened.start(), tags.skip_call(), [wrong]


def _glm(text: str, schemas: Schemas) -> Iterator[Found]:
    tags = _Tags(text, _GLM)
    while (opened := tags.find("<tool_call>")) is not None:
        try:
            name = _name(tags.text_before("<arg_key>", "</tool_call>"), opened.end())
            arguments: dict[str, Any] = {}
            while tags.last != "</tool_call>":
                at = tags.at
                key = tags.text_before("</arg_key>")
                tags.directly("<arg_value>")
                _add(arguments, key, tags.value_before("</arg_value>"), schemas.get(name), at)
                tags.directly("<arg_key>", "</tool_call>")
            yield opened.start(), tags.at, [ToolCall(name, arguments)]
        except Wrong as wrong:
            yield opened.start(), tags.skip_call(), [wrong]


class _Tags:
    """The tags of a text, from left to right, none of them twice."""

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self._text = text
        self._tags = list(pattern.finditer(text))
        self._next = self._ahead = 0
        self.at = 0
        self.last = ""

    def find(self, tag: str) -> re.Match[str] | None:
        """The next such tag, whatever stands before it."""
        while (match := self._peek()) is not None:
            self._take()
            if match[0] == tag:
                return match
        return None

    def directly(self, *wanted: str) -> re.Match[str]:
        """The next tag, which begins as one of `wanted`; only whitespace stands before it."""
        match, at = self._peek(), skip_space(self._text, self.at)
        if match is None or match.start() != at or not match[0].startswith(wanted):
            raise Wrong(at, f"expected {' or '.join(wanted)}")
        return self._take()

    def text_before(self, *wanted: str) -> str:
        """The text up to the next tag, which is one of these."""
        start, match = self.at, self._peek()
        if match is None or match[0] not in wanted:
            raise Wrong(match.start() if match else start, f"expected {' or '.join(wanted)}")
        self._take()
        return self._text[start : match.start()]

    def value_before(self, close: str) -> str:
        """The text up to the next such tag; where the call ends before it, nothing is taken."""
        start = self.at
        self._ahead = max(self._ahead, self._next)
        while self._ahead < len(self._tags):
            match = self._tags[self._ahead]
            if match[0].lstrip("\n") == close:
                self._next = self._ahead
                self._take()
                return self._text[start : match.start()]
            if match["last"] is not None:
                break
            self._ahead += 1
        raise Wrong(start, f"expected {close}")

    def skip_call(self) -> int:
        """Where the broken call ends: behind its close, or where the next one begins."""
        while (match := self._peek()) is not None:
            if match[0] == "<tool_call>":
                return match.start()
            self._take()
            if match[0] == "</tool_call>":
                return match.end()
        return len(self._text)

    def _peek(self) -> re.Match[str] | None:
        return self._tags[self._next] if self._next < len(self._tags) else None

    def _take(self) -> re.Match[str]:
        match = self._tags[self._next]
        self._next, self.at, self.last = self._next + 1, match.end(), match[0]
        return match


def _name(written: str, at: int) -> str:
    if not (name := written.strip()):
        raise Wrong(at, "the call has no name")
    return name


def _add(
    arguments: dict[str, Any], key: str, value: str, schema: Mapping[str, Any] | None, at: int
) -> None:
    if not key.strip():
        raise Wrong(at, "a parameter has no name")
    if key in arguments:
        raise Wrong(at, f"the parameter {key!r} stands twice in one call")
    arguments[key] = typed(value, (schema or {}).get(key))


_LLAMA3_CALL = re.compile(r'\{\s*+"name"\s*+:[^,{}\[\]]*+,\s*+"(?:parameters|arguments)"')


def _llama3(text: str, schemas: Schemas) -> Iterator[Found]:
    head, tag, _ = text.partition("<|python_tag|>")
    start = len(head) if tag else 0
    at = start + len(tag)
    values = JsonValues(text)
    while skip_space(text, at) < len(text) or (tag and start < at):
        marked = bool(tag) or _LLAMA3_CALL.match(text, skip_space(text, at)) is not None
        try:
            value, end = values.value(at, len(text))
            keys = set(value) if isinstance(value, dict) else set()
            if not tag and not ("name" in keys and keys & {"parameters", "arguments"}):
                return  # an answer that happens to be JSON
            marked = True
            call = _call(value, at)
        except Wrong as wrong:
            if marked:  # else it is an answer, or what comes after the calls
                yield start, len(text), [wrong]
            return
        yield start, end, [call]
        start, at = end, skip_space(text, end)
        at += text.startswith(";", at)


_MISTRAL_NAME = re.compile(r"\s*+([^\[\]{}\s]++)(?:\[CALL_ID\]([^\[\]{}\s]++))?\[ARGS\]")


def _mistral(text: str, schemas: Schemas) -> Iterator[Found]:
    marks = list(re.finditer(r"\[TOOL_CALLS\]", text))
    values = JsonValues(text)
    free = 0
    for k, mark in enumerate(marks):
        if mark.start() < free:
            continue
        limit = marks[k + 1].start() if k + 1 < len(marks) else len(text)
        named = _MISTRAL_NAME.match(text, mark.end())
        at = named.end() if named else mark.end()
        try:
            value, end = values.value(at, limit)
        except Wrong as wrong:
            free = limit
            yield mark.start(), free, [wrong]
            continue
        free = mark.start()
        listed = isinstance(value, list) and not named
        for start, stop, item in array_items(text, at) if listed else [(free, end, value)]:
            yield free, start, []
            place, free = start if listed else at, stop
            try:
                if named:
                    call = ToolCall(named[1], _arguments(item, place), named[2])
                else:
                    call = _call(item, place)
                yield start, stop, [call]
            except Wrong as wrong:
                yield start, stop, [wrong]
        yield free, end, []
        free = end


_HARMONY_TAG = re.compile(r"<\|(start|message|call|end|return)\|>")
_RECIPIENT = re.compile(r"(?<![^\s>])to=(functions\.)?+([^\s<]*+)")


def _harmony(text: str, schemas: Schemas) -> Iterator[Found]:
    tags = list(_HARMONY_TAG.finditer(text))
    values = JsonValues(text)
    begin = free = 0  # the header of a message begins here
    for k, tag in enumerate(tags):
        if tag.start() < free:
            continue
        if tag[1] != "message":
            begin = tag.start() if tag[1] == "start" else tag.end()
            if tag[1] != "start":
                yield tag.start(), tag.end(), []
            continue
        recipient = _RECIPIENT.search(text, begin, tag.start())
        channel = text.find("<|channel|>", begin, tag.start()) >= 0
        if recipient is None or not (recipient[1] or channel):  # else prose that says `to=`
            begin, start = tag.end(), begin
            yield start, tag.end(), []
            continue
        limit = tags[k + 1].start() if k + 1 < len(tags) else len(text)
        start = begin
        try:
            if not recipient[2]:
                raise Wrong(recipient.end(), "the call has no name")
            value, end = values.value(tag.end(), limit)
            free = begin = end + len("<|call|>") * text.startswith("<|call|>", end)
            yield start, free, [ToolCall(recipient[2], _arguments(value, tag.end()))]
        except Wrong as wrong:
            free = begin = max(free, limit)
            yield start, free, [wrong]


PARSERS: Mapping[str, Callable[[str, Schemas], Iterator[Found]]] = {
    "hermes": _hermes,
    "qwen3_coder": _qwen3_coder,
    "glm": _glm,
    "llama3": _llama3,
    "mistral": _mistral,
    "harmony": _harmony,
}
