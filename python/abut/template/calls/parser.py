"""The parser of a template's tool calls, derived from the template and proved.

Invariant: a parser is used only if it gives back the calls that the template wrote, and these
calls, rendered again, are the same text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from abut.errors import TemplateError
from abut.template.calls.derive import asked_syntax, derive_syntaxes
from abut.template.calls.marks import HARD, OTHERS
from abut.template.calls.written import (
    ANSWER,
    CALLS,
    CONTENT,
    KEY,
    NAME,
    OTHER_KEY,
    OTHER_NAME,
    VALUE,
    CallProbe,
    Turns,
    call_probes,
)
from abut.template.rendering import schema_of
from abut.template.thinking import Render, ThinkingFormat
from abut.tool_calls.parse import READERS, SYNTAXES, ReadCalls
from abut.tool_calls.parsed import (
    Found,
    MalformedCall,
    Parse,
    ParsedCalls,
    ToolCall,
    is_deep,
    parsed,
)
from abut.tool_calls.reader import CallReader
from abut.tool_calls.schemas import Schemas, parameter_schemas
from abut.tool_calls.syntax import CallSyntax


def tool_call_parser(
    hf_tokenizer: Any,
    render: Render,
    *,
    tools: Sequence[Any] | None = None,
    stops: Sequence[str] = (),
    thinking: ThinkingFormat | None = None,
) -> Parse:
    """Return the parser of the tool calls that a template writes.

    The candidates are the one format that no template spells out (`harmony`), the syntaxes derived
    from the template, and `parse_response` of transformers if the tokenizer has a response
    template. The parser that returns the most cases correctly wins: several calls, text before
    them, no arguments, difficult texts, values of each kind.

    Args:
        hf_tokenizer: a transformers tokenizer.
        render: renders with its template, or raises `TemplateError`.
        tools: JSON schemas or functions, as for `apply_chat_template`.
        stops: the texts of the tokens that end a turn.
        thinking: how the template writes thinking; the parser gets the text after it.

    Raises:
        TemplateError: the template does not write tool calls, no candidate can read them, or the
            template raises when it renders one.
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
        "the template does not write tool calls, or writes them in a form that abut does not know\n"
        "hint: use the template of a model that calls tools, or set the tokenizer's "
        "response_template, so that transformers can parse its answers"
    )


def _readers(probe: CallProbe, turns: Turns, control: frozenset[str]) -> Iterator[ReadCalls]:
    yield READERS["harmony"]
    for syntax in derive_syntaxes(probe, turns):
        # A named format also has what its family writes and its template does not.
        syntax = next((known for known in SYNTAXES.values() if _same(syntax, known)), syntax)
        own = CallReader(replace(syntax, control=control))
        asked = asked_syntax(probe.asking, syntax)
        yield own if asked is None else _either(own, CallReader(replace(asked, control=control)))


def _same(syntax: CallSyntax, known: CallSyntax) -> bool:
    bare = replace(known, marks=(), between=syntax.between)
    return bool(known.marks) and bare == replace(syntax, ordinary=frozenset(), leads=())


def _either(first: ReadCalls, second: ReadCalls) -> ReadCalls:
    """Return a reader that asks the second one where the first finds no call."""

    def read(text: str, schemas: Schemas) -> Iterator[Found]:
        found = list(first(text, schemas))
        yield from found or second(text, schemas)

    return read


def transformers_parser(hf_tokenizer: Any, tools: Sequence[Any], stop: str) -> Parse:
    """Return a parser that calls `parse_response` of transformers: it reads all calls or none."""

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
                if is_deep(call.arguments):
                    raise ValueError("the arguments are nested too deeply")
        except Exception as error:  # regexes and transforms of the tokenizer can raise anything
            reason = f"parse_response: {type(error).__name__}: {error}"
            return ParsedCalls("", (), (MalformedCall(0, len(text), reason, text),))
        return ParsedCalls(message.get("content") or "", tuple(calls), ())

    return parse


class CallProof:
    """Writes calls with a template, and checks that a parser gives them back.

    Args:
        probe: gives calls to the template.
        turns: how the template ends turns, because a parser does not get the end of a turn.
    """

    def __init__(self, probe: CallProbe, turns: Turns) -> None:
        self._probe = probe
        self._turns = turns

    def faults(self, parse: Parse) -> list[str]:
        """Return the names of the cases that the parser does not give back."""
        faults = []
        answer = parse(ANSWER)
        if (answer.content, answer.calls, answer.malformed) != (ANSWER, (), ()):
            faults.append("no call")
        cases: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
            ("no arguments", [(NAME, {})]),
            ("a hard text", [(NAME, {KEY: HARD, OTHER_KEY: VALUE})]),
        ]
        cases += [(f"{value!r}", [(NAME, {KEY: value})]) for value in OTHERS]
        if self.writes_several:
            cases.append(("several calls", CALLS))
        faults += [what for what, calls in cases if not self.gives_back(parse, calls)]
        if self.writes_text_before:
            said = parse(self._written(CALLS[:1], content=CONTENT) or "")
            words = [word in said.content for word in (CONTENT, NAME, KEY, VALUE)]
            if len(said.calls) != 1 or said.malformed or words != [True, False, False, False]:
                faults.append("text before")
        return faults

    @property
    def writes_several(self) -> bool:
        """Return whether the template writes all of several calls in one turn."""
        two = self._written(CALLS)
        return two is not None and OTHER_NAME in two

    @property
    def writes_text_before(self) -> bool:
        """Return whether the template writes the text next to calls before the calls."""
        text = self._written(CALLS[:1], content=CONTENT)
        return text is not None and 0 <= text.find(CONTENT) < text.find(NAME)

    def gives_back(self, parse: Parse, calls: Sequence[tuple[str, dict[str, Any]]]) -> bool:
        """Return whether the parser returns the calls, and their render is the same text."""
        written = self._written(calls)
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
        return self._written([(call.name, call.arguments) for call in found.calls]) == written

    def _written(self, calls: Sequence[tuple[str, dict[str, Any]]], **keys: Any) -> str | None:
        try:
            return self._turns.said(self._probe.written(calls, **keys))
        except TemplateError:
            return None
