"""The parser for what a chat template writes as a tool call, derived from it and proved.

Invariant: what a parser is taken for is what it gives back: calls that the template wrote come back
as they were, and rendered again they are the same text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from abut.errors import TemplateError
from abut.template.call_form import derive_forms
from abut.template.call_marks import HARD, OTHERS
from abut.template.call_probe import (
    ANSWER,
    CONTENT,
    KEY,
    NAME,
    OTHER_KEY,
    OTHER_NAME,
    OTHER_VALUE,
    VALUE,
    CallProbe,
    call_probes,
)
from abut.template.rendering import schema_of
from abut.template.thinking import Render
from abut.tool_calls.call import ToolCall
from abut.tool_calls.formats import FORMS, READERS, ReadCalls
from abut.tool_calls.parse import MalformedCall, Parse, ParsedCalls, parsed
from abut.tool_calls.reader import FormReader
from abut.tool_calls.values import parameter_schemas

_ONE: list[tuple[str, dict[str, Any]]] = [(NAME, {KEY: VALUE})]
_TWO = [*_ONE, (OTHER_NAME, {KEY: OTHER_VALUE, OTHER_KEY: 2})]


def tool_call_parser(
    hf_tokenizer: Any,
    render: Render,
    *,
    tools: Sequence[Any] | None = None,
    stops: Sequence[str] = (),
) -> Parse:
    """The parser for what a template writes as a tool call.

    Tried are the formats that no template says (`harmony`), then what the template writes, and
    last `parse_response` of transformers, where the tokenizer has a response template. Taken is the
    one that gives back the most of what is written: several calls, text before them, no arguments,
    hard texts, values of each kind.

    Args:
        hf_tokenizer: a transformers tokenizer.
        render: renders with its template, or raises `TemplateError`.
        tools: JSON schemas or functions, as for `apply_chat_template`.
        stops: the texts of the tokens that end a turn.

    Raises:
        TemplateError: the template writes no tool calls, or in a form that none of them reads.
    """
    schemas = [schema_of(tool) for tool in tools or ()]
    of_parameters = parameter_schemas(schemas)
    best: tuple[int, Parse] | None = None
    for probe in call_probes(render):
        candidates: list[Parse] = [
            lambda text, read=read: parsed(text, read(text, of_parameters))  # type: ignore[misc]
            for read in _readers(probe, stops)
        ]
        if getattr(hf_tokenizer, "response_template", None) is not None:
            candidates.append(_transformers_parser(hf_tokenizer, schemas, [*stops, ""][0]))
        for parse in candidates:
            faults = sum(1 for _ in _faults(probe, parse))
            if _gives_back(probe, parse, _ONE) and (best is None or faults < best[0]):
                best = faults, parse
            if best is not None and best[0] == 0:
                return best[1]
    if best is not None:
        return best[1]
    raise TemplateError(
        "the template writes no tool call, or in a form that is not known\n"
        "hint: use the template of a model that calls tools, or set the tokenizer's "
        "response_template, with which transformers parses its answers"
    )


def _readers(probe: CallProbe, stops: Sequence[str]) -> Iterator[ReadCalls]:
    yield READERS["harmony"]
    for form in derive_forms(probe, stops):
        # A named format also has what its family writes and its template does not.
        named = next((name for name, known in FORMS.items() if _same(form, known)), None)
        yield FormReader(form) if named is None else READERS[named]


def _same(form: Any, known: Any) -> bool:
    bare = replace(known, marks=(), between=form.between)
    return bool(known.marks) and bare == replace(form, ordinary=frozenset())


def _faults(probe: CallProbe, parse: Parse) -> Iterator[str]:
    """What of that which a template writes is not given back."""
    answer = parse(ANSWER)
    if (answer.content, answer.calls, answer.malformed) != (ANSWER, (), ()):
        yield "no call"
    keys = {KEY: HARD, OTHER_KEY: VALUE}
    for what, calls in (
        ("no arguments", [(NAME, {})]),
        ("a hard text", [(NAME, keys)]),
        *((f"a {type(value).__name__}", [(NAME, {KEY: value})]) for value in OTHERS),
    ):
        if not _gives_back(probe, parse, calls):
            yield what
    two = _written(probe, _TWO)
    if two is not None and OTHER_NAME in two and not _gives_back(probe, parse, _TWO):
        yield "several calls"
    text = _written(probe, _ONE, content=CONTENT)
    if text is not None and 0 <= text.find(CONTENT) < text.find(NAME):
        said = parse(text)
        words = [word in said.content for word in (CONTENT, NAME, KEY, VALUE)]
        if len(said.calls) != 1 or said.malformed or words != [True, False, False, False]:
            yield "text before"


def _written(probe: CallProbe, calls: Any, **keys: Any) -> str | None:
    try:
        return probe.written(calls, **keys)
    except TemplateError:
        return None


def _gives_back(
    probe: CallProbe, parse: Parse, calls: Sequence[tuple[str, dict[str, Any]]]
) -> bool:
    """Whether calls come back, texts as they were, and are the same text when rendered again."""
    written = _written(probe, calls)
    if written is None:
        return False
    found = parse(written)
    names = [name for name, _ in calls]
    if found.malformed or [call.name for call in found.calls] != names:
        return False
    for (_, given), call in zip(calls, found.calls, strict=True):
        texts = {key: value for key, value in given.items() if isinstance(value, str)}
        if given.keys() != call.arguments.keys() or not texts.items() <= call.arguments.items():
            return False
    return _written(probe, [(call.name, call.arguments) for call in found.calls]) == written


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
            return ParsedCalls("", (), (MalformedCall(0, len(text), reason, text),))
        return ParsedCalls(message.get("content") or "", tuple(calls), ())

    return parse
