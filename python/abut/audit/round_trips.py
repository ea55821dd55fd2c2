"""Round trips: the template writes thinking and tool calls, and abut parses them again.

The template writes a known thought, answer or call, so if abut parses anything else from that text,
abut is wrong. Tried with every thinking switch that changes the generation prompt.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from abut.errors import TemplateError
from abut.messages import Message
from abut.template.processor import ChatTemplateProcessor
from abut.template.rendering import Rendering
from abut.template.thinking import after_user
from abut.template.turn_layout import user
from abut.tool_calls.parse import ToolCallFormat, parse_tool_calls

_SWITCHES = ("enable_thinking", "thinking")  # by the templates of all families seen so far
_FIELDS = ("reasoning_content", "reasoning", "thinking")
_ANSWER = "abutAnswer"
_THOUGHTS = (
    "abutReasoning",
    "Is a < b?\n<b>abutReasoning</b>: <answer> or <tool_call>, </answer>, <",
)
# The prompt has begun the thinking, so an answer cannot follow it directly.
_OPENED = re.compile(r"<(?!/)([^<>]*think[^<>]*)>\s*\Z", re.IGNORECASE)
_NAME, _KEY = "abutName", "abutKey"
_ARGUMENTS = ("abutValue", ' "q\\" </tool_call>\n é\n')
_SHOWN = 2


@dataclass(frozen=True)
class Mistaken:
    """A sample that abut parses differently than it was written."""

    sample: str
    written: Any
    heard: Any


@dataclass(frozen=True)
class RoundTrip:
    """The result for samples of one kind after one generation prompt.

    Attributes:
        kind: `"thinking"`, an answer and the thinking before it, or `"calls"`.
        variables: the template's variables that were set besides the given ones.
        tried: the number of samples.
        broken: how many of them were parsed differently.
        mistaken: the first of those.
        note: what was not tried, and why; `""` if everything was.
    """

    kind: Literal["thinking", "calls"]
    variables: Mapping[str, Any]
    tried: int
    broken: int
    mistaken: tuple[Mistaken, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        """The name on the printed page: the kind and the variables."""
        given = [f"{key}={str(value).lower()}" for key, value in self.variables.items()]
        return ", ".join([self.kind, *given])


def judge_round_trips(hf_tokenizer: Any, options: Mapping[str, Any]) -> Iterator[RoundTrip]:
    """Judge thinking and calls after each generation prompt that the template has.

    Args:
        hf_tokenizer: a transformers tokenizer.
        options: variables for its template; a thinking switch among them is not changed.
    """
    seen: set[str] = set()
    switched = [{key: value} for key in _SWITCHES if key not in options for value in (True, False)]
    for variables in ({}, *switched):
        with_them = {**options, **variables}
        try:
            prompt = Rendering(hf_tokenizer, with_them)([user()])
            if prompt in seen:
                continue
            seen.add(prompt)
            samples = _Samples(hf_tokenizer, with_them)
        except TemplateError:  # the audit reports why, or the template has no such switch
            continue
        yield samples.thinking(variables)
        if (calls := samples.calls(variables)) is not None:
            yield calls


@dataclass
class _Samples:
    """Makes the samples that a template writes after one generation prompt."""

    hf_tokenizer: Any
    options: Mapping[str, Any]
    render: Rendering = field(init=False)
    processor: ChatTemplateProcessor = field(init=False)
    prompt: str = field(init=False)

    def __post_init__(self) -> None:
        self.render = Rendering(self.hf_tokenizer, dict(self.options))
        self.processor = ChatTemplateProcessor(self.hf_tokenizer, **self.options)
        self.prompt = after_user(self.render([user()]))

    def thinking(self, variables: Mapping[str, Any]) -> RoundTrip:
        """Judge thoughts, an answer without any, and thoughts that are cut at every character."""
        tried, broken, thoughtful = 0, [], False
        for sample, written in self._answers():
            tried += 1
            thoughtful |= written[0] != ""
            thought, action = self.processor.parse_agent_output(sample)
            if (thought, action.strip()) != written:
                broken.append(Mistaken(sample, written, (thought, action)))
        for sample, written_close in self._cut():
            tried += 1
            close = "".join(self.processor.close_thinking(sample))
            if close != written_close:
                broken.append(Mistaken(sample, written_close, close))
        note = "" if thoughtful else "the template does not write thinking here"
        return RoundTrip("thinking", variables, tried, len(broken), tuple(broken[:_SHOWN]), note)

    def calls(self, variables: Mapping[str, Any]) -> RoundTrip | None:
        """Judge calls, alone and after thinking; None if the template does not write calls."""
        tried, broken, notes = 0, [], []
        for argument in _ARGUMENTS:
            for sample in self._calls(argument):
                heard = self._heard(sample)
                written = [(_NAME, {_KEY: argument})]
                if heard is None and not _any_format_reads(sample):
                    notes.append(
                        "not parsed, because abut does not know the form in which they are written"
                    )
                elif heard != written and argument != _ARGUMENTS[0]:
                    notes.append("except an argument with quotes, tags and outer whitespace")
                else:
                    tried += 1
                    if heard != written:
                        broken.append(Mistaken(sample, written, heard))
        if not tried and not notes:
            return None
        note = notes[0] if notes else ""
        return RoundTrip("calls", variables, tried, len(broken), tuple(broken[:_SHOWN]), note)

    def _answers(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yield samples, each with the `(reasoning, action)` that the template was given."""
        if (plain := self._plain()) is not None:
            yield plain, ("", _ANSWER)
        for thought in _THOUGHTS:
            sample = self._thoughtful({"content": _ANSWER}, thought, _ANSWER)
            if sample is None:
                continue
            yield sample, (thought, _ANSWER)
            begin = sample.index(thought)
            for end in range(1, len(thought) + 1):
                yield sample[: begin + end], (thought[:end].strip(), "")

    def _cut(self) -> Iterator[tuple[str, str]]:
        """Yield cut samples, each with what the template writes between its thoughts and answer."""
        if (plain := self._plain()) is not None:
            yield plain[: plain.index(_ANSWER) + 1], ""
        for thought in _THOUGHTS:
            sample = self._with_thoughts({"content": _ANSWER}, thought, _ANSWER)
            if sample is not None:
                at = sample.index(thought) + len(thought)
                yield sample[:at], sample[at : sample.index(_ANSWER, at)]

    def _calls(self, argument: str) -> Iterator[str]:
        function = {"name": _NAME, "arguments": {_KEY: argument}}
        call = {"id": "abutCall0", "type": "function", "function": function}
        for content in ("", None):
            message = {"content": content, "tool_calls": [call]}
            sample = self._sample(message, _NAME)
            if sample is not None:
                yield sample
            sample = self._thoughtful(message, _THOUGHTS[0], _NAME)
            if sample is not None:
                yield sample

    def _plain(self) -> str | None:
        """Return an answer without thoughts."""
        if _OPENED.search(self.prompt):
            return None
        return self._sample({"content": _ANSWER}, _ANSWER)

    def _thoughtful(self, message: Message, thought: str, last: str) -> str | None:
        """Return a message after thoughts."""
        sample = self._with_thoughts(message, thought, last)
        opened = _OPENED.search(self.prompt)
        if sample is not None or opened is None:
            return sample
        # The template drops thoughts that its prompt has begun; the model samples their end tag.
        close = f"</{opened[1]}>"
        rest = self._sample(message, last, prompt=self.prompt[: opened.start()])
        if rest is None or f"<{opened[1]}>" in rest or close in rest:
            return None
        return f"{thought}\n{close}\n\n{rest}"

    def _with_thoughts(self, message: Message, thought: str, last: str) -> str | None:
        """Return the message after thoughts, if the template writes them."""
        sample = self._sample({**message, **dict.fromkeys(_FIELDS, thought)}, last)
        return sample if sample is not None and thought in sample else None

    def _sample(self, message: Message, last: str, *, prompt: str = "") -> str | None:
        """Return the message as the model would have sampled it, up to the first stop token.

        None unless the template writes the message after its prompt, with the word `last` in it.
        """
        answer: Message = {"role": "assistant", **message}
        prompt = prompt or self.prompt
        try:
            written = after_user(self.render([user(), answer], add_generation_prompt=False))
        except TemplateError:
            return None
        if not written.startswith(prompt) or last not in written:
            return None
        head, _, tail = written.removeprefix(prompt).rpartition(last)
        ends = [tail.index(stop) for stop in self.processor.report.stop_tokens if stop in tail]
        return head + last + tail[: min(ends, default=len(tail))]

    def _heard(self, sample: str) -> list[tuple[str, dict[str, Any]]] | None:
        """Return the calls that abut parses; None if the processor does not know their format."""
        try:
            parsed = self.processor.parse_tool_calls(self.processor.parse_agent_output(sample)[1])
        except TemplateError:
            return None
        return [(call.name, call.arguments) for call in parsed.calls]


def _any_format_reads(sample: str) -> bool:
    formats = get_args(ToolCallFormat)
    found = (parse_tool_calls(sample, format=format, tools=[]) for format in formats)
    return any(call.name == _NAME for parsed in found for call in parsed.calls)
