"""Finds the tool calls in an action, in a format that has a name.

Invariant: nothing that a model writes raises. A call that breaks its format is `malformed`, with
the position and the reason, because a bad action is data. Parsing takes time linear in the text.

The formats are data, except `harmony`. If the syntax derived from a template is one of them, the
named format is used, because it also has what the family writes and the template does not show.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from abut.tool_calls.bodies import arguments_of
from abut.tool_calls.literals import read_json
from abut.tool_calls.parsed import (
    Found,
    ParsedCalls,
    ToolCall,
    Wrong,
    parsed,
    parsed_as_sampled,
)
from abut.tool_calls.reader import CallReader
from abut.tool_calls.schemas import Schemas, parameter_schemas
from abut.tool_calls.syntax import CallSyntax, Mark, NamedBody, ObjectBody, Parameters, Piece

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


ReadCalls: TypeAlias = Callable[[str, Schemas], Iterator[Found]]

SYNTAXES: Mapping[str, CallSyntax] = {
    "hermes": CallSyntax(ObjectBody(), open="<tool_call>\n", close="\n</tool_call>", between="\n"),
    "qwen3_coder": CallSyntax(
        NamedBody(
            (Piece("name", ">\n"),),
            Parameters("<parameter=", (Mark(">\n", "\n</parameter>"),), "\n"),
        ),
        open="<tool_call>\n<function=",
        close="\n</function>\n</tool_call>",
        between="\n",
    ),
    "glm": CallSyntax(
        NamedBody(
            (Piece("name", "\n"),),
            Parameters("<arg_key>", (Mark("</arg_key>\n<arg_value>", "</arg_value>"),), "\n"),
        ),
        open="<tool_call>",
        close="\n</tool_call>",
        between="\n",
    ),
    "llama3": CallSyntax(
        ObjectBody(arguments="parameters"),
        between=";",
        text_before=False,
        marks=("<|python_tag|>",),
    ),
    "mistral": CallSyntax(ObjectBody(id="id"), begin="[TOOL_CALLS][", between=", ", end="]"),
    "mistral_named": CallSyntax(
        NamedBody((Piece("name", "[ARGS]"),), before_id="[CALL_ID]"), open="[TOOL_CALLS]"
    ),
}

_CALL_READERS = {name: CallReader(syntax) for name, syntax in SYNTAXES.items()}
_MISTRAL_LIST = re.compile(r"\[TOOL_CALLS\]\s*+[\[{]")


def _read_mistral(text: str, schemas: Schemas) -> Iterator[Found]:
    """Read the syntax of the first call: the older list, or a name before the arguments."""
    at = max(text.find("[TOOL_CALLS]"), 0)
    name = "mistral" if _MISTRAL_LIST.match(text, at) else "mistral_named"
    return _CALL_READERS[name](text, schemas)


_TAG = re.compile(r"<\|(start|message|call|end|return)\|>")
_RECIPIENT = re.compile(r"(?<![^\s>])to=(functions\.)?+([^\s<]*+)")


def _read_harmony(text: str, schemas: Schemas) -> Iterator[Found]:
    """Yield the calls of gpt-oss, messages to a function, in order; see `Found`."""
    # By hand, because the template writes one order of the header and the model another: the
    # recipient stands before the channel or behind it, and a `<|constrain|>` before `json`.
    tags = list(_TAG.finditer(text))
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
            value, end = read_json(text, tag.end())
            free = begin = end + len("<|call|>") * text.startswith("<|call|>", end)
            yield start, free, [ToolCall(recipient[2], arguments_of(value, tag.end()))]
        except Wrong as wrong:
            free = begin = max(free, limit)
            yield start, free, [wrong]


READERS: Mapping[str, ReadCalls] = {
    **{name: _CALL_READERS[name] for name in ("hermes", "qwen3_coder", "glm", "llama3")},
    "mistral": _read_mistral,
    "harmony": _read_harmony,
}


def parse_tool_calls(
    text: str, *, format: ToolCallFormat, tools: Sequence[Any] | None = None
) -> ParsedCalls:
    """Find the tool calls in an action.

    Args:
        text: a completion without its thinking and its stop token. The actions that the engine
            passes to an environment know which control tokens were sampled; those that are only
            spelled do not begin a call.
        format: the format of the model's family.
        tools: JSON schemas of the tools. `qwen3_coder` and `glm` do not distinguish text and
            numbers, so a value is read as the type that its schema names. It stays text without a
            schema, or if it does not fit.

    Raises:
        ValueError: an unknown `format`; never for what the text holds.
        TypeError: a tool is not a JSON schema, but for example a function.
    """
    if format not in READERS:
        raise ValueError(f"format={format!r}: must be one of {', '.join(get_args(ToolCallFormat))}")
    read, schemas = READERS[format], parameter_schemas(tools)
    return parsed_as_sampled(lambda text: parsed(text, read(text, schemas)), text)
