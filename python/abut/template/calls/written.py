"""Turns as a template writes them: with calls (`CallProbe`) and without (`Turns`)."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from abut.errors import TemplateError
from abut.messages import Message
from abut.parts import Content, Part, Scaffold
from abut.template.thinking import (
    Render,
    ThinkingFormat,
    after_common_prefix,
    after_user,
    render_or_none,
)
from abut.template.turn_layout import assistant, quote_difference, tool_call, user
from abut.tool_calls.patterns import TAG

NAME, OTHER_NAME = "abutName", "abutOther"
KEY, OTHER_KEY = "abutKey", "abutLater"  # in this order also where a template sorts them
VALUE, OTHER_VALUE = "abutValue", "abutSecond"
CONTENT, ANSWER = "abutContent", "abutAnswer"
CALLS: list[tuple[str, dict[str, Any]]] = [
    (NAME, {KEY: VALUE}),
    (OTHER_NAME, {KEY: OTHER_VALUE, OTHER_KEY: 2}),
]
"""Two calls to prove a parser with."""


def call_id(k: int) -> str:
    """Return the id of the call with this number; Mistral's ids have nine characters."""
    return f"abutCall{k}"


@dataclass(frozen=True)
class CallProbe:
    """Gives calls to a template, in one of the ways in which templates take them.

    Attributes:
        render: renders with the template.
        as_text: give arguments as their JSON text, not as an object.
        content: the content of a message with calls and without text; `CONTENT` if the template
            takes no calls without text.
        named_ids: put the name into the id, `functions.f:0`, because some templates write the name
            nowhere else.
        thinking: how the template writes thinking, which a parser of calls does not get.
    """

    render: Render
    as_text: bool
    content: str | None
    named_ids: bool = False
    thinking: ThinkingFormat | None = None

    def written(self, calls: Sequence[tuple[str, dict[str, Any]]], **keys: Any) -> str:
        """Return the text of a turn with these calls, after the generation prompt.

        Raises:
            TemplateError: the template does not render it.
        """
        message = {
            "role": "assistant",
            "content": self.content,
            "tool_calls": [self.call(k, *call) for k, call in enumerate(calls)],
            **keys,
        }
        written = self.behind_prompt(message)
        # Text that is there only because the template wants some is no part of the calls.
        return written.rpartition(CONTENT)[2] if self.content and "content" not in keys else written

    def behind_prompt(self, message: dict[str, Any]) -> str:
        """Return the text of a message, after the generation prompt."""
        written = after_user(self.render([user(), message], add_generation_prompt=False))
        said = after_common_prefix(written, self.prompt)
        return said if self.thinking is None else said[self.thinking.begun(said) :]

    def end_of_user(self) -> str:
        """Return the text after the content of a user message; `""` if that is not known."""
        return after_user(render_or_none(self.render, [user()], add_generation_prompt=False) or "")

    @cached_property
    def asking(self) -> str:
        """The text before the first user message, such as a description of the tools."""
        return self.render([user()]).rpartition(user()["content"])[0]

    @cached_property
    def prompt(self) -> str:
        """The text between a user message and the first token of the model."""
        return after_user(self.render([user()]))

    def ordinary(self) -> str:
        """Return the text of turns without calls."""
        texts = [self.prompt]
        for messages in ([user(), assistant(ANSWER), user()], [user(), assistant(ANSWER)]):
            try:
                texts.append(self.render(messages))
                texts.append(self.render(messages, add_generation_prompt=False))
            except TemplateError:
                continue
        return texts[0] + "".join(text.partition(user()["content"])[2] for text in texts[1:])

    def call(self, k: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return one call of a message, the way that the template takes it; `k` is its number."""
        given: Any = json.dumps(arguments, ensure_ascii=False) if self.as_text else arguments
        return tool_call(name, given, f"functions.{name}:{k}" if self.named_ids else call_id(k))


def call_probes(render: Render, thinking: ThinkingFormat | None = None) -> Iterator[CallProbe]:
    """Yield the ways in which the template takes calls and writes them."""
    found = False
    for named_ids, content in product((False, True), ("", None, CONTENT)):
        if found and (named_ids or content is CONTENT):
            return  # these are for templates that take nothing else
        for as_text in (False, True):
            probe = CallProbe(render, as_text, content, named_ids, thinking)
            try:
                written = probe.written([(NAME, {KEY: VALUE})])
            except TemplateError:
                continue
            if NAME in written and VALUE in written:
                found = True
                yield probe


def turn_parts(
    render: Render,
    control: Iterable[str],
    thinking: ThinkingFormat,
    stops: Sequence[str],
    message: Message,
) -> list[Part]:
    """Return a turn of the policy after the generation prompt, its stop token included.

    Args:
        render: renders with the template.
        control: the control tokens of the tokenizer.
        thinking: how the template writes thinking; the turn has none.
        stops: the tokens that end a turn.
        message: has `content`, `tool_calls` with `function.name` and `function.arguments` (an
            object), or both.

    Raises:
        TemplateError: the template does not write such a turn, or does not end it.
    """
    said: str = message.get("content") or ""
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    probe: CallProbe | None = CallProbe(render, False, said)
    if calls:
        probe = next(call_probes(render, thinking), None)
    if probe is None:
        raise TemplateError(
            "the template does not write tool calls\nhint: use replies without tool_calls, or "
            "another model"
        )
    spelled = [token for token in control if any(token in json.dumps(c) for c in calls)]
    if spelled:
        raise TemplateError(
            f"the tool calls of a reply contain the control token {spelled[0]!r}, which would be "
            "read as part of the format, not as text\nhint: leave the token out of the call"
        )
    given = {"content": said or probe.content} if calls else {"content": said}
    made = [probe.call(k, *call) for k, call in enumerate(calls)]
    turn = {"role": "assistant", **given, **({"tool_calls": made} if made else {})}
    whole = after_user(render([user(), turn], add_generation_prompt=False))
    text = after_common_prefix(whole, probe.prompt)
    text = thinking.closing(text) + text  # the prompt may have begun thinking that this text lacks
    said = said if said in text else said.strip()  # as many templates do
    start = text.find(said)
    if start < 0:
        raise TemplateError(
            f"the template does not write this reply as it is: {quote_difference(said, text)}\n"
            f"hint: use a reply {'without text beside its calls' if calls else 'in other words'}"
        )
    behind = text[start + len(said) :]
    # In some templates the next message begins with the stop token.
    ends = [(behind.find(stop), stop) for stop in stops if stop in behind]
    at, stop = min(ends, default=(len(behind), stops[0]))
    parts: tuple[Part, ...] = (
        Scaffold(text[:start]),
        Content(said),
        Scaffold(behind[:at] + stop),
    )
    return [part for part in parts if part]


_ATOM = re.compile(rf"{TAG.pattern}|\s|\w+|.", re.DOTALL)


class Turns:
    """The text of turns without calls, none of which can tell where a call begins or ends.

    Attributes:
        tags: every tag that is in such a turn.
        text_close: the text that closes an answer before the turn ends. In a turn that also calls
            it is before the calls.
        header: the text that asks the model for its turn.

    Args:
        probe: renders with the template.
        ends: the tokens that are known to end a turn.
    """

    def __init__(self, probe: CallProbe, ends: Sequence[str]) -> None:
        self.tags = frozenset(TAG.findall(probe.ordinary()))
        try:
            self._end = probe.behind_prompt(assistant(ANSWER)).rpartition(ANSWER)[2]
        except TemplateError:
            self._end = ""
        # What ends every message tells the close of a text from the end of its turn: with calls,
        # the two ends may share more by chance (Kimi K3 closes texts and calls with <|sep|>).
        of_user = probe.end_of_user()
        self.header = probe.prompt.removeprefix(of_user)
        of_messages = common_suffix(self._end, of_user)
        known_end = TAG.search(of_messages) is not None
        self._shared_end = of_messages if known_end else self._end
        self.text_close = self._end.removesuffix(of_messages).strip() if known_end else ""
        self._ends = re.compile("|".join(map(re.escape, filter(None, ends))) or "(?!)")
        own = self._end.strip()  # what many tags end may have some of them elsewhere, too
        known = filter(None, [*ends, own if len(TAG.findall(own)) <= 1 else ""])
        self._any_end = re.compile("|".join(map(re.escape, known)) or "(?!)")

    def said(self, text: str) -> str:
        """Return what the policy samples of a turn: all but its end."""
        return self._ends.split(self._without_end(text), maxsplit=1)[0]

    def before_end(self, text: str) -> str:
        """Return the part of a string after a call that is before the end of the turn."""
        return self._any_end.split(self._without_end(text), maxsplit=1)[0]

    def _without_end(self, text: str) -> str:
        if self._end and text.endswith(self._end):
            return text.removesuffix(self._end)
        return text.removesuffix(common_suffix(text, self._shared_end))


def common_prefix(a: str, b: str) -> str:
    """Return the common prefix, in whole tags and words."""
    atoms = []
    for x, y in zip(_ATOM.findall(a), _ATOM.findall(b), strict=False):
        if x != y:
            break
        atoms.append(x)
    return "".join(atoms)


def common_suffix(a: str, b: str) -> str:
    """Return the common suffix, in whole tags and words."""
    atoms = []
    for x, y in zip(reversed(_ATOM.findall(a)), reversed(_ATOM.findall(b)), strict=False):
        if x != y:
            break
        atoms.append(x)
    return "".join(reversed(atoms))
