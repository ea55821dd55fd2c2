"""Renders tool calls behind one user message: what a template writes of them."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Protocol

from abut.errors import TemplateError
from abut.template.thinking import Render, ThinkingFormat, after_common_prefix, after_user
from abut.template.turn_layout import assistant, user
from abut.tool_calls.patterns import TAG

NAME, OTHER_NAME = "abutName", "abutOther"
KEY, OTHER_KEY = "abutKey", "abutLater"  # in this order also where a template sorts them
VALUE, OTHER_VALUE = "abutValue", "abutSecond"
CONTENT, ANSWER = "abutContent", "abutAnswer"
CALLS: list[tuple[str, dict[str, Any]]] = [
    (NAME, {KEY: VALUE}),
    (OTHER_NAME, {KEY: OTHER_VALUE, OTHER_KEY: 2}),
]
"""Two calls, for proofs."""


class Call(Protocol):
    """A name and arguments."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def arguments(self) -> dict[str, Any]: ...  # noqa: D102


def call_id(k: int) -> str:
    """The id of the call with this number; Mistral's have nine characters."""
    return f"abutCall{k}"


@dataclass(frozen=True)
class CallProbe:
    """How a template is given calls.

    Attributes:
        render: renders with the template.
        as_text: whether the arguments are their JSON text.
        content: beside calls without text; `CONTENT` where the template takes none without.
        named_ids: whether ids hold the name, `functions.f:0`: some templates write it nowhere else.
        thinking: how the template writes thinking: a parser of calls sees none that comes first.
    """

    render: Render
    as_text: bool
    content: str | None
    named_ids: bool = False
    thinking: ThinkingFormat | None = None

    def written(self, calls: Sequence[tuple[str, dict[str, Any]]], **keys: Any) -> str:
        """What stands behind the generation prompt.

        Raises:
            TemplateError: the template does not render it.
        """
        message = {
            "role": "assistant",
            "content": self.content,
            "tool_calls": [self._call(k, *call) for k, call in enumerate(calls)],
            **keys,
        }
        written = self.behind_prompt(message)
        # Text that is there only because the template wants some is no part of the calls.
        return written.rpartition(CONTENT)[2] if self.content and "content" not in keys else written

    def behind_prompt(self, message: dict[str, Any]) -> str:
        """What stands of a message behind the generation prompt."""
        written = after_user(self.render([user(), message], add_generation_prompt=False))
        said = after_common_prefix(written, self.prompt)
        return said if self.thinking is None else said[self.thinking.begun(said) :]

    def end_of_user(self) -> str:
        """What stands behind the content of a user message; `""` where that is not known."""
        try:
            return after_user(self.render([user()], add_generation_prompt=False))
        except TemplateError:
            return ""

    @cached_property
    def asking(self) -> str:
        """What the template says before the first user message: its tools, say."""
        return self.render([user()]).rpartition(user()["content"])[0]

    @cached_property
    def prompt(self) -> str:
        """What stands behind a user message, up to where the model begins."""
        return after_user(self.render([user()]))

    def ordinary(self) -> str:
        """What the template writes in turns without calls."""
        texts = [self.prompt]
        for messages in ([user(), assistant(ANSWER), user()], [user(), assistant(ANSWER)]):
            try:
                texts.append(self.render(messages))
                texts.append(self.render(messages, add_generation_prompt=False))
            except TemplateError:
                continue
        return texts[0] + "".join(text.partition(user()["content"])[2] for text in texts[1:])

    def _call(self, k: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        given: Any = json.dumps(arguments, ensure_ascii=False) if self.as_text else arguments
        function = {"name": name, "arguments": given}
        id_ = f"functions.{name}:{k}" if self.named_ids else call_id(k)
        return {"id": id_, "type": "function", "function": function}


def call_probes(render: Render, thinking: ThinkingFormat | None = None) -> Iterator[CallProbe]:
    """The ways in which the template takes calls and writes them."""
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


_ATOM = re.compile(rf"{TAG.pattern}|\s|\w+|.", re.DOTALL)


class Turns:
    """Turns without calls: what stands in them says nothing about calls.

    Attributes:
        tags: all that stand there.
        text_close: what closes the text of an answer before the turn ends; a turn that also calls
            writes it before its calls.
        header: what asks the model for its turn.

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
        """What the policy says of a turn: all but its end."""
        return self._ends.split(self._without_end(text), maxsplit=1)[0]

    def before_end(self, text: str) -> str:
        """What stands before the end of a turn, in a text behind a call."""
        return self._any_end.split(self._without_end(text), maxsplit=1)[0]

    def _without_end(self, text: str) -> str:
        if self._end and text.endswith(self._end):
            return text.removesuffix(self._end)
        return text.removesuffix(common_suffix(text, self._shared_end))


def common_prefix(a: str, b: str) -> str:
    """The common beginning, of whole tags and words."""
    atoms = []
    for x, y in zip(_ATOM.findall(a), _ATOM.findall(b), strict=False):
        if x != y:
            break
        atoms.append(x)
    return "".join(atoms)


def common_suffix(a: str, b: str) -> str:
    """The common end, of whole tags and words."""
    atoms = []
    for x, y in zip(reversed(_ATOM.findall(a)), reversed(_ATOM.findall(b)), strict=False):
        if x != y:
            break
        atoms.append(x)
    return "".join(reversed(atoms))
