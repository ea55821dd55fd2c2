"""Tool calls in an action: what the model wrote, as typed values.

Invariant: nothing that a model writes raises. A call that is not what its format asks for is
`malformed`, with the place and the reason: a bad action is data. Parsing takes time linear in the
text, whatever it spells (but for what transformers parses).

Which format a template has is found by rendering: the parser that gives back the call which the
template wrote is the right one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from abut.errors import TemplateError
from abut.probe_messages import common_prefix, user
from abut.thinking import Render
from abut.tool_call_formats import PARSERS, ToolCall
from abut.tool_call_values import Wrong, parameter_schemas

__all__ = [
    "MalformedCall",
    "ParsedCalls",
    "ToolCall",
    "ToolCallFormat",
    "parse_tool_calls",
    "tool_call_parser",
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
        text: a completion without its thinking and its stop token.
        format: how its family writes calls.
        tools: JSON schemas of the tools. `qwen3_coder` and `glm` write text and numbers alike:
            where the schema of a parameter says what it is, it is read as that. Where it does not
            fit, or nothing is said, it stays text.

    Raises:
        ValueError: an unknown `format`; never for what the text holds.
        TypeError: a tool is no JSON schema, but a function, say.
    """
    if format not in PARSERS:
        raise ValueError(f"format={format!r}: must be one of {', '.join(get_args(ToolCallFormat))}")
    calls: list[ToolCall] = []
    malformed: list[MalformedCall] = []
    around: list[str] = []
    free = 0
    for start, end, results in PARSERS[format](text, parameter_schemas(tools)):
        around.append(text[free:start])
        free = end
        for result in results:
            if isinstance(result, Wrong):
                malformed.append(MalformedCall(start, end, str(result)))
            else:
                calls.append(result)
    content = "".join([*around, text[free:]]).strip() if free else text
    return ParsedCalls(content, tuple(calls), tuple(malformed))


def tool_call_parser(
    hf_tokenizer: Any, render: Render, *, tools: Sequence[Any] | None = None, stop: str = ""
) -> Parse:
    """The parser for what a template writes as a tool call.

    Tried are `parse_response` of transformers, where the tokenizer has a response template, and
    every format of `parse_tool_calls`. The first that gives back a call with a hard text in its
    argument (quotes, outer whitespace, the tags themselves) is taken, else the first that gives
    back a plain one. So a response template that loses whitespace gives way to a format that does
    not.

    Args:
        hf_tokenizer: a transformers tokenizer.
        render: renders with its template, or raises `TemplateError`.
        tools: JSON schemas or functions, as for `apply_chat_template`.
        stop: the text of the template's stop token; some response templates need to see it.

    Raises:
        TemplateError: the template writes no tool calls, or in a form that none of them reads.
    """
    schemas = [_schema(tool) for tool in tools or ()]
    candidates: list[Parse] = [
        lambda text, format=format: parse_tool_calls(text, format=format, tools=schemas)  # type: ignore[misc]
        for format in get_args(ToolCallFormat)
    ]
    if getattr(hf_tokenizer, "response_template", None) is not None:
        candidates.insert(0, _transformers_parser(hf_tokenizer, schemas, stop))
    for argument in _ARGUMENTS:
        for written in _written_calls(render, argument):
            for parse in candidates:
                if _gives_back(parse, written, argument):
                    return parse
    raise TemplateError(
        "the template writes no tool call, or in a form that is not known\n"
        "hint: use the template of a model that calls tools, or set the tokenizer's "
        "response_template, with which transformers parses its answers"
    )


_NAME, _KEY, _ANSWER = "abutName", "abutKey", "abutAnswer"
_ARGUMENTS = (' "q\\" </tool_call>\n<|im_end|> é\n', "abutValue")


def _written_calls(render: Render, argument: str) -> Iterator[str]:
    """What the template writes for a call after the generation prompt, in its various forms."""
    arguments = {_KEY: argument}
    function = {"name": _NAME, "arguments": arguments}
    call = {"id": "abutCall0", "type": "function", "function": function}
    for content in ("", None):
        message = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            prompt = render([user()])
            written = render([user(), message], add_generation_prompt=False)
        except TemplateError:
            continue
        yield written.removeprefix(common_prefix(written, prompt))


def _gives_back(parse: Parse, written: str, argument: str) -> bool:
    parsed, answer = parse(written), parse(_ANSWER)
    return (
        [(call.name, call.arguments) for call in parsed.calls] == [(_NAME, {_KEY: argument})]
        and not parsed.malformed
        and (answer.content, answer.calls, answer.malformed) == (_ANSWER, (), ())
    )


def _transformers_parser(hf_tokenizer: Any, tools: Sequence[Any], stop: str) -> Parse:
    def parse(text: str) -> ParsedCalls:
        try:
            # Some response templates end a call with the stop token, others do not know it there.
            try:
                message = hf_tokenizer.parse_response(text, prefix="", tools=tools)
            except ValueError:
                message = hf_tokenizer.parse_response(text + stop, prefix="", tools=tools)
            functions = [call["function"] for call in message.get("tool_calls") or ()]
            calls = [ToolCall(f["name"], f["arguments"]) for f in functions]
            for call in calls:
                if not isinstance(call.name, str) or not isinstance(call.arguments, dict):
                    raise TypeError(f"{call.name!r} is called with {call.arguments!r}")
        except Exception as error:  # regexes and transforms of the tokenizer can raise anything
            reason = f"parse_response: {type(error).__name__}: {error}"
            return ParsedCalls("", (), (MalformedCall(0, len(text), reason),))
        return ParsedCalls(message.get("content") or "", tuple(calls), ())

    return parse


def _schema(tool: Any) -> Any:
    if isinstance(tool, dict):
        return tool
    from transformers.utils import get_json_schema

    return get_json_schema(tool)
