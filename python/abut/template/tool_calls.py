"""The parser for what a chat template writes as a tool call, derived from it and proved.

Invariant: what a parser is taken for is what it gives back: calls that the template wrote come back
as they were, and rendered again they are the same text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from abut.errors import TemplateError
from abut.template.call_asked import asked_form
from abut.template.call_form import derive_forms
from abut.template.call_probe import CALLS, CallProbe, call_probes
from abut.template.call_proof import CallProof
from abut.template.call_turns import Turns
from abut.template.rendering import schema_of
from abut.template.thinking import Render, ThinkingFormat
from abut.tool_calls.call import Found, ToolCall
from abut.tool_calls.form import CallForm
from abut.tool_calls.formats import FORMS, READERS, ReadCalls
from abut.tool_calls.parse import MalformedCall, Parse, ParsedCalls, parsed
from abut.tool_calls.reader import FormReader
from abut.tool_calls.schemas import Schemas, parameter_schemas


def tool_call_parser(
    hf_tokenizer: Any,
    render: Render,
    *,
    tools: Sequence[Any] | None = None,
    stops: Sequence[str] = (),
    thinking: ThinkingFormat | None = None,
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
        thinking: how the template writes thinking; the parser gets what stands behind it.

    Raises:
        TemplateError: the template writes no tool calls, or in a form that none of them reads; or
            it raises where one is rendered.
    """
    schemas = [schema_of(tool) for tool in tools or ()]
    of_parameters = parameter_schemas(schemas)
    control = frozenset(token for token in hf_tokenizer.get_added_vocab() if token.strip())
    best: tuple[int, Parse] | None = None
    probes = list(call_probes(render, thinking))
    if not probes:
        CallProbe(render, as_text=False, content="").written(CALLS[:1])  # or says why it cannot
    for probe in probes:
        turns = Turns(probe, stops)
        proof = CallProof(probe, turns)
        candidates: list[Parse] = [
            lambda text, read=read: parsed(text, read(text, of_parameters))  # type: ignore[misc]
            for read in _readers(probe, turns, control)
        ]
        if getattr(hf_tokenizer, "response_template", None) is not None:
            candidates.append(transformers_parser(hf_tokenizer, schemas, [*stops, ""][0]))
        for parse in candidates:
            if not proof.gives_back(parse, CALLS[:1]):
                continue
            faults = len(proof.faults(parse))
            if best is None or faults < best[0]:
                best = faults, parse
            if faults == 0:
                return parse
    if best is not None:
        return best[1]
    raise TemplateError(
        "the template writes no tool call, or in a form that is not known\n"
        "hint: use the template of a model that calls tools, or set the tokenizer's "
        "response_template, with which transformers parses its answers"
    )


def _readers(probe: CallProbe, turns: Turns, control: frozenset[str]) -> Iterator[ReadCalls]:
    yield READERS["harmony"]
    for form in derive_forms(probe, turns):
        # A named format also has what its family writes and its template does not.
        form = next((known for known in FORMS.values() if _same(form, known)), form)
        own = FormReader(replace(form, control=control))
        asked = asked_form(probe.asking, form)
        yield own if asked is None else _either(own, FormReader(replace(asked, control=control)))


def _same(form: CallForm, known: CallForm) -> bool:
    bare = replace(known, marks=(), between=form.between)
    return bool(known.marks) and bare == replace(form, ordinary=frozenset(), leads=())


def _either(first: ReadCalls, second: ReadCalls) -> ReadCalls:
    """Reads by the first; where that finds nothing, by the second."""

    def read(text: str, schemas: Schemas) -> Iterator[Found]:
        found = list(first(text, schemas))
        yield from found or second(text, schemas)

    return read


def transformers_parser(hf_tokenizer: Any, tools: Sequence[Any], stop: str) -> Parse:
    """`parse_response` of transformers; it reads all calls of an action or none."""

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
