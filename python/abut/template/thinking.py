"""Splits a completion into thinking and action: an env sees the action alone.

Invariant: no character of the action is lost, and no thinking that comes first reaches the env,
however many blocks it has, not even thinking that was cut by the length limit. The format of a
family's thinking is found by rendering an answer that has some, never by the name of a template.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os.path import commonprefix
from typing import Any, Protocol

from abut.errors import TemplateError
from abut.messages import Message
from abut.template.turn_layout import assistant, thinks, tool_call, user

OPEN = "<think>"
CLOSE = "</think>"

_REASONING = "abutReasoning"
_ANSWER = "abutAnswer"
_CALLING = {**assistant(""), "tool_calls": [tool_call(_ANSWER, {})]}
_SPACE = re.compile(r"\s*+")
_FIRST_TAG = re.compile(r"\s*[<\[][^<>\[\]]*[>\]]\s*")
_BEGUN_TAG = re.compile(r"[<\[][^<>\[\]\s]*\Z")


class Render(Protocol):
    """Renders messages to text, or raises `TemplateError`."""

    def __call__(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The text of the whole conversation."""
        ...


def render_or_none(
    render: Render, messages: Sequence[Message], *, add_generation_prompt: bool = True
) -> str | None:
    """Return the text of a conversation; None if the template does not render it."""
    try:
        return render(messages, add_generation_prompt=add_generation_prompt)
    except TemplateError:
        return None


@dataclass(frozen=True)
class ThinkingFormat:
    """The texts around the thinking before an answer.

    Attributes:
        open: the text that begins the thinking.
        close: the text that ends it.
        between: the whole text between thinking and answer: the close, the whitespace around it,
            headers.
        answer: a header before every answer, which is not part of the action.
        restart: the text that begins the next message of the same turn, in templates in which
            thinking, answer and tool calls are messages of their own (gpt-oss).
        opened: true if the generation prompt has begun the thinking, so that a completion continues
            inside it.
        act: the text that ends thinking before tool calls, if it is not `close`. It begins the
            action.
    """

    open: str = OPEN
    close: str = CLOSE
    between: str = f"\n{CLOSE}\n\n"
    answer: str = ""
    restart: str = ""
    opened: bool = False
    act: str = ""

    def split(self, completion: str) -> tuple[str, str]:
        """Split one completion, without its stop token, into `(reasoning, action)`.

        Thinking counts where it comes first: after optional whitespace, or opened by the
        generation prompt (`opened`, or a close that no open precedes), and directly after other
        thinking. An open further on is part of the action.

        - Thinking that is closed ends at the first close: an open inside it opens nothing. Each
          block of reasoning is stripped of whitespace, the action of the newlines around it, which
          the format asks for; its spaces stay. An empty line is between two blocks.
        - Thinking that is not closed is all reasoning; the action is `""`.
        - Without thinking the completion is the action, character for character.

        Where messages follow each other (`restart`), every thinking message is reasoning, an
        answer is action without its header, and any other message, a tool call say, is action as
        it was sampled, header included.
        """
        if self.restart:
            return self._split_messages(completion)
        thoughts, at = self._thoughts(completion)
        if not thoughts:
            return "", completion.removeprefix(self.answer)
        action = "" if at is None else completion[at:].strip("\r\n").removeprefix(self.answer)
        return "\n\n".join(filter(None, thoughts)), action

    def begun(self, completion: str) -> int:
        """Return the length of the thinking that the completion itself opens and closes first."""
        if self.restart or not completion.lstrip().startswith(self.open):
            return 0
        return self._thoughts(completion)[1] or 0

    def closing(self, completion: str) -> str:
        """Return the template's text between the thinking of this completion and an answer.

        `""` if the completion does not end inside its thinking.
        """
        if self.restart:
            last = self._messages(completion)[-1]
            inside = self._has_header(last, self.open) and self.close not in last
        else:
            inside = self._thoughts(completion)[1] is None
        return self.between if inside else ""

    def _thoughts(self, completion: str) -> tuple[list[str], int | None]:
        """Return the first blocks of thinking, and where they end; `None` if they are cut."""
        thoughts: list[str] = []
        at = 0
        while True:
            space = _SPACE.match(completion, at)
            start = space.end() if space else at
            begun = completion.startswith(self.open, start)
            start += len(self.open) * begun
            close = completion.find(self.close, start)
            acted = completion.find(self.act, start) if self.act else -1
            if acted >= 0 and (begun or (self.opened and not thoughts)) and not 0 <= close < acted:
                return [*thoughts, completion[start:acted].strip()], acted
            if not begun:
                unopened = close >= 0 and self.open not in completion[:close]
                if thoughts or not (self.opened or unopened):
                    return thoughts, at
            if close < 0:
                return [*thoughts, completion[start:].strip()], None
            thoughts.append(completion[start:close].strip())
            at = close + len(self.close)

    def _split_messages(self, completion: str) -> tuple[str, str]:
        reasoning: list[str] = []
        actions: list[str] = []
        for k, message in enumerate(self._messages(completion)):
            if self._has_header(message, self.open):
                reasoning.append(self._body(message, self.open).partition(self.close)[0].strip())
            elif self._has_header(message, self.answer):
                actions.append(self._body(message, self.answer))
            elif message:
                actions.append(self.restart * (k > 0) + message)
        return "\n\n".join(filter(None, reasoning)), "".join(actions)

    def _body(self, message: str, opening: str) -> str:
        """Return the text of a message; a policy may forget the token that ends the header."""
        _, ended, body = message.partition(self._mark)
        return body if ended else message.removeprefix(opening.removesuffix(self._mark)).lstrip(" ")

    def _messages(self, completion: str) -> list[str]:
        if self.opened and not completion.startswith(self.open):
            completion = self.open + completion
        return completion.split(self.restart)

    @cached_property
    def _mark(self) -> str:
        """The text that ends the header of a message: both known headers end with it."""
        common = _common_suffix(self.open, self.answer)
        return common[max(common.find("<"), 0) :]

    def _has_header(self, message: str, opening: str) -> bool:
        """Return whether the message begins as `opening` does and is addressed to nobody else.

        gpt-oss writes more into the header of a tool call: `<|channel|>analysis to=python`.
        """
        header, _, _ = message.partition(self._mark)
        wanted = opening.removesuffix(self._mark)
        more = header.removeprefix(wanted)
        return header.startswith(wanted) and more[:1] in ("", " ", "<") and "to=" not in more


_GEMMA = ThinkingFormat("<|channel>thought", "<channel|>", "\n<channel|>")


def split_thinking(completion: str, *, opened: bool = False) -> tuple[str, str]:
    """Return `(reasoning, action)` in the `<think>…</think>` format, as `ThinkingFormat.split`."""
    return ThinkingFormat(opened=opened).split(completion)


def find_thinking(render: Render, generation_prompt: str) -> ThinkingFormat:
    """Find the format in which a template writes the thinking of an answer.

    The probes are an answer and a tool call, with thinking in the fields from which templates read
    it. A template may not write them and still know thinking: it then drops Gemma's format from
    an earlier answer. If nothing shows (DeepSeek-R1, Llama 3) the format is `<think>…</think>`,
    because a completion without thinking is the same in every format.

    Args:
        render: renders with the template, or raises `TemplateError`.
        generation_prompt: the text that starts the model's turn.
    """
    found = next(_formats(render, generation_prompt), None)
    if found is None:
        drops = _drops_past_thinking(render, _GEMMA)
        found = _GEMMA if drops else ThinkingFormat(answer=_answer_header(render))
    opened = generation_prompt.rstrip().endswith(found.open.strip())
    return replace(found, opened=opened, act=_act(render, found))


def _formats(render: Render, generation_prompt: str) -> Iterator[ThinkingFormat]:
    thinking, text = {"type": "thinking", "thinking": _REASONING}, {"type": "text", "text": _ANSWER}
    prompt = _behind_user(render)
    for thoughtful, plain in (
        ({**assistant(_ANSWER), **thinks(_REASONING)}, assistant(_ANSWER)),
        ({"role": "assistant", "content": [thinking, text]}, {**assistant(), "content": [text]}),
        # Gemma 4 keeps the thinking before a call only.
        ({**_CALLING, **thinks(_REASONING)}, _CALLING),
    ):
        written, without = _behind_user(render, thoughtful), _behind_user(render, plain)
        if prompt is None or written is None or without is None:
            continue
        head, _, tail = written.partition(_REASONING)
        between, answered, _ = tail.partition(_ANSWER)
        if not answered:
            continue
        opening = after_common_prefix(head, prompt)
        if '"type"' in opening or "'type'" in opening:
            continue  # it writes a list of blocks as Python or JSON would
        if not opening.strip():  # the generation prompt has opened it
            last_tag = re.search(r"[<\[][^<\[]*$", head.rstrip())
            opening = last_tag[0] if last_tag else ""
        before = after_common_prefix(without, prompt).partition(_ANSWER)[0]
        close, answer = between, ""
        if "tool_calls" in plain:
            begun = _FIRST_TAG.match(between)
            close = between = begun[0] if begun else ""
            answer = _answer_header(render, opening.strip() + close.strip())
        elif before.strip() and between.strip() not in before and between.endswith(before):
            close, answer = between.removesuffix(before), before
        restart = generation_prompt if answer and close.endswith(generation_prompt) else ""
        close = close.removesuffix(restart)
        if not restart:
            opening = opening.strip()
        if opening and close.strip():
            yield ThinkingFormat(opening, close.strip(), between, answer, restart)


def _act(render: Render, format: ThinkingFormat) -> str:
    """Return the tag that ends thinking before calls, if the template does not write `close`."""
    written = _behind_user(render, {**_CALLING, **thinks(_REASONING)}) or ""
    head, _, tail = written.partition(_REASONING)
    between, called, _ = tail.partition(_ANSWER)
    tag = _FIRST_TAG.match(between)
    known = (
        format.restart or format.close in between or not head.rstrip().endswith(format.open.strip())
    )
    return "" if known or not called or tag is None else tag[0].strip()


def _drops_past_thinking(render: Render, format: ThinkingFormat) -> bool:
    content = f"{format.open}\n{_REASONING}{format.between}{_ANSWER}"
    past = render_or_none(render, [user(), assistant(content), user()]) or ""
    return _ANSWER in past and _REASONING not in past


def _answer_header(render: Render, empty: str = "") -> str:
    """Return the header between the generation prompt and any answer, such as Functionary's `all`.

    Args:
        render: renders with the template.
        empty: thinking without thoughts, which a generation prompt may end with (Command R7B).
    """
    prompt, written = _behind_user(render), _behind_user(render, assistant(_ANSWER))
    if prompt is None or written is None:
        return ""
    begun = after_common_prefix(prompt, written).strip() in ("", empty)
    header = after_common_prefix(written, prompt).partition(_ANSWER)[0] if begun else ""
    return header if header.strip() and OPEN not in header and CLOSE not in header else ""


def _behind_user(render: Render, turn: Message | None = None) -> str | None:
    """Return the text after a user message: a turn or the generation prompt; None if refused."""
    messages = [user()] if turn is None else [user(), turn]
    text = render_or_none(render, messages, add_generation_prompt=turn is None)
    return None if text is None else after_user(text)


def after_user(rendered: str) -> str:
    """Return the text after the probe's user message.

    The text before it may change with the answer, because some system prompts do.
    """
    return rendered.rpartition(user()["content"])[2]


def after_common_prefix(text: str, other: str) -> str:
    """Return `text` from where it differs, or from the begin of the tag that differs.

    `<think>` and `</think>` have their first character in common, and differ as a whole.
    """
    common = commonprefix([text, other])
    begun = _BEGUN_TAG.search(common)
    return text[begun.start() if begun else len(common) :]


def _common_suffix(a: str, b: str) -> str:
    return commonprefix([a[::-1], b[::-1]])[::-1]
