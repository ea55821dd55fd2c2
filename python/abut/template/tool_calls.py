"""The parser for what a chat template writes as a tool call: the one that gives it back.

Which format a template has is found by rendering: the parser that gives back the call which the
template wrote is the right one.
"""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from abut.errors import TemplateError
from abut.template.probe import user
from abut.template.rendering import schema_of
from abut.template.thinking import Render, after_common_prefix, after_user
from abut.tool_calls.formats import ToolCall
from abut.tool_calls.parse import (
    MalformedCall,
    Parse,
    ParsedCalls,
    ToolCallFormat,
    parse_tool_calls,
)


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
    schemas = [schema_of(tool) for tool in tools or ()]
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
            prompt = after_user(render([user()]))
            written = after_user(render([user(), message], add_generation_prompt=False))
        except TemplateError:
            continue
        yield after_common_prefix(written, prompt)


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
