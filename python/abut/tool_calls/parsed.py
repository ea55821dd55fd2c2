"""The calls in an action as typed values, and the errors in those that are broken."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from abut.parts import Sampled


@dataclass(frozen=True)
class ToolCall:
    """One well-formed tool call."""

    name: str
    """The name of the tool."""
    arguments: dict[str, Any]
    """JSON values by name. If a format writes text and numbers alike, they are text unless a schema
    says otherwise."""
    id: str | None = None
    """The id that the model wrote (Mistral, Solar, Kimi K2); None if it wrote no id."""


class Wrong(Exception):
    """A call breaks its format: the position, from 0 in the text, and the reason.

    Attributes:
        at: the position.
        end: where the broken text ends, if that is known.
    """

    def __init__(self, at: int, what: str, *, end: int | None = None) -> None:
        super().__init__(f"character {at}: {what}")
        self.at = at
        self.end = end


Found: TypeAlias = tuple[int, int, Sequence[ToolCall | Wrong]]
"""The first character, the one after the last, and the calls between; a header has no calls."""


@dataclass(frozen=True)
class MalformedCall:
    """Text that begins like a call and is not well formed."""

    start: int
    """The position of its first character in the parsed text."""
    end: int
    """The position after its last character."""
    error: str
    """The position, counted from 0 in the text, and the reason."""
    text: str
    """The text itself."""


@dataclass(frozen=True)
class ParsedCalls:
    """The calls of an action, and the text around them."""

    content: str
    """The text around the calls, stripped of whitespace; without calls, the whole text as it is."""
    calls: tuple[ToolCall, ...]
    """The well-formed calls, in order."""
    malformed: tuple[MalformedCall, ...]
    """The malformed calls, in order."""


Parse: TypeAlias = Callable[[str], ParsedCalls]

# Templates, copies and records handle so many. Because Python stops at 1000 nested calls, some of
# them fail at 300 levels, and others at 500.
_MOST_LEVELS = 200


def parsed(text: str, found: Iterable[Found]) -> ParsedCalls:
    """Separate the calls that were found in a string from the text around them."""
    calls: list[ToolCall] = []
    malformed: list[MalformedCall] = []
    around: list[str] = []
    free = 0
    for start, end, results in found:
        if free < start:
            around.append(text[free:start])
        free = end
        for result in results:
            if isinstance(result, ToolCall) and is_deep(result.arguments):
                result = Wrong(start, "the arguments are nested too deeply")
            if isinstance(result, Wrong):
                malformed.append(MalformedCall(start, end, str(result), text[start:end]))
            else:
                calls.append(result)
    content = "".join([*around, text[free:]]).strip() if free else text
    return ParsedCalls(content, tuple(calls), tuple(malformed))


def is_deep(value: Any) -> bool:
    """Return whether a JSON value is nested deeper than a call's arguments may be."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        dicts = [item for one in level if isinstance(one, dict) for item in one.values()]
        lists = [item for one in level if isinstance(one, list) for item in one]
        if not (level := dicts + lists):
            return False
    return True


def parsed_as_sampled(parse: Parse, text: str) -> ParsedCalls:
    """Parse a string in which the control tokens of a call count only if they were sampled.

    Args:
        parse: the parser.
        text: a `Sampled` where the policy spelled control tokens with other tokens.
    """
    if not isinstance(text, Sampled):
        return parse(text)
    found = parse(text.veiled)
    show = text.unveiled
    return ParsedCalls(
        show(found.content),
        tuple(ToolCall(show(c.name), show(c.arguments), show(c.id)) for c in found.calls),
        tuple(MalformedCall(m.start, m.end, show(m.error), show(m.text)) for m in found.malformed),
    )
