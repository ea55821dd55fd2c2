"""Tool calls in an action: what the model wrote, as typed values.

Invariant: nothing that a model writes raises. A call that is not what its format asks for is
`malformed`, with the place and the reason: a bad action is data. Parsing takes time linear in the
text, whatever it spells.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from abut.parts import Sampled
from abut.tool_calls.call import Found, ToolCall, Wrong
from abut.tool_calls.formats import READERS
from abut.tool_calls.schemas import parameter_schemas

__all__ = [
    "MalformedCall",
    "ParsedCalls",
    "ToolCall",
    "ToolCallFormat",
    "parse_tool_calls",
]

ToolCallFormat: TypeAlias = Literal["hermes", "qwen3_coder", "glm", "llama3", "mistral", "harmony"]
"""How a family writes a call:

- hermes (Hermes, Qwen2.5, Qwen3): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`
- qwen3_coder (Qwen3-Coder, Qwen3.5, Nemotron 3):
  `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`
- glm (GLM-4.5): `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`
- llama3 (Llama 3.1): `{"name": …, "parameters": {…}}`, with nothing before it, or anywhere after
  `<|python_tag|>`
- mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, and from its 11th tokenizer on
  `[TOOL_CALLS]name[ARGS]{…}`
- harmony (gpt-oss): a message `to=functions.name<|channel|>commentary json<|message|>{…}`
"""


@dataclass(frozen=True)
class MalformedCall:
    """What began as a call and is none."""

    start: int
    """First character in the text that was parsed."""
    end: int
    """Behind its last character."""
    error: str
    """The place, counted from 0 in the text, and the reason."""
    text: str
    """What stands there."""


@dataclass(frozen=True)
class ParsedCalls:
    """An action, taken apart."""

    content: str
    """The text around the calls, stripped of whitespace; without any, all of it as it is."""
    calls: tuple[ToolCall, ...]
    malformed: tuple[MalformedCall, ...]


Parse: TypeAlias = Callable[[str], ParsedCalls]


def parse_tool_calls(
    text: str, *, format: ToolCallFormat, tools: Sequence[Any] | None = None
) -> ParsedCalls:
    """Find the tool calls in an action.

    Args:
        text: a completion without its thinking and its stop token. What the engine hands to an
            environment knows where control tokens were sampled: those that are only spelled begin
            no call.
        format: how its family writes calls.
        tools: JSON schemas of the tools. `qwen3_coder` and `glm` write text and numbers alike:
            where the schema of a parameter says what it is, it is read as that. Where it does not
            fit, or nothing is said, it stays text.

    Raises:
        ValueError: an unknown `format`; never for what the text holds.
        TypeError: a tool is no JSON schema, but a function, say.
    """
    if format not in READERS:
        raise ValueError(f"format={format!r}: must be one of {', '.join(get_args(ToolCallFormat))}")
    read, schemas = READERS[format], parameter_schemas(tools)
    return parsed_as_sampled(lambda text: parsed(text, read(text, schemas)), text)


def parsed(text: str, found: Iterable[Found]) -> ParsedCalls:
    """What was found in a text, and the text around it."""
    calls: list[ToolCall] = []
    malformed: list[MalformedCall] = []
    around: list[str] = []
    free = 0
    for start, end, results in found:
        if free < start:
            around.append(text[free:start])
        free = end
        for result in results:
            if isinstance(result, Wrong):
                malformed.append(MalformedCall(start, end, str(result), text[start:end]))
            else:
                calls.append(result)
    content = "".join([*around, text[free:]]).strip() if free else text
    return ParsedCalls(content, tuple(calls), tuple(malformed))


def parsed_as_sampled(parse: Parse, text: str) -> ParsedCalls:
    """What was parsed, where the control tokens of a call count only if they were sampled.

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
