"""The end of an assistant turn, and the token on which the model stops there.

Two renders are compared: the turn as the last message, and the turn with messages after it. The
text that both have belongs to the turn, and its last control token ends the turn. Two kinds of
template differ. In some, there is no text after a turn, so the token that opens the next message
ends it (GLM). Others write the end of the last turn differently from earlier turns (gpt-oss).
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os.path import commonprefix

from abut.errors import TemplateError
from abut.messages import Message
from abut.template.calls.written import common_suffix
from abut.template.rendering import Rendering
from abut.template.thinking import after_common_prefix, after_user, render_or_none
from abut.template.turn_layout import WITH_TEMPLATE, TurnLayout, assistant, thinks, user
from abut.tool_calls.patterns import TAG

_HINT = f"hint: abut cannot append to such a template exactly; pass another one: {WITH_TEMPLATE}"


@dataclass(frozen=True)
class TurnEnd:
    """The end of an assistant turn before one kind of messages.

    Attributes:
        text: the text between the turn's last word and the next message. If the turn is a tool
            call, whose last word cannot be told, the control token alone.
        token: the control token that `text` ends with.
        stop: the control token that the model stops on: `token`, unless the template writes the
            end of a last turn differently.
        count: how many control tokens the template writes after the probe's turn, up to and with
            `token`.
    """

    text: str
    token: str
    stop: str
    count: int

    def before_stop(self, end_of_user: str) -> tuple[str, ...]:
        """Return the texts that may be between a turn's last word and `token`, longest first.

        A template may close the text there (Cohere's <|END_RESPONSE|>), and the message (Kimi K3).
        A turn that called has only its message closed, as the user's is. A turn that was cut may
        have only the begin of its end, from the first tag on. Whitespace alone is text.

        Args:
            end_of_user: the text after the content of a user message.
        """
        whole = self.text.removesuffix(self.token)
        ends = {whole, common_suffix(whole, end_of_user.rpartition(self.token)[0])}
        first = re.match(rf"\s*(?:{TAG.pattern})", whole)
        if first is not None:
            ends |= {whole[:place] for place in range(first.end(), len(whole))}
        return tuple(sorted((end for end in ends if end.strip()), key=len, reverse=True))


@dataclass(frozen=True)
class TurnInside:
    """The control tokens that a template writes inside a turn, before the turn's last word.

    An engine that stops on one of them never finishes such a turn.

    Attributes:
        thinking: in turns that think before they answer or call. Empty where the generation prompt
            has closed the thinking, because no such turn comes then.
        calls: in turns that call a tool, with text next to the call and without. A token that the
            template writes only where such a turn is the last one, and not where the tool's result
            follows, is not among them: the model may say the turn without it (Nemotron Nano 2).
    """

    thinking: frozenset[str]
    calls: frozenset[str]

    @classmethod
    def of(cls, rendering: Rendering, calling: TurnLayout | None) -> "TurnInside":
        """Render such turns.

        Args:
            rendering: of the template.
            calling: how the template takes calls, None where it takes none.
        """
        prompt = after_user(rendering([user()]))
        calls: list[Message] = []
        if calling is not None:
            called: Message = {"role": "tool", "name": "abutTool", "content": ""}
            calls = [calling.turn([called], "abut", thinking=text)[0] for text in ("", _BESIDE)]
        return cls(
            frozenset(_inside(rendering, _thoughtful(calls[:1]), prompt, thinking=True)),
            frozenset(_inside_calls(rendering, calls, prompt)),
        )

    def check_thinking(self, stops: Sequence[str]) -> None:
        """Raise `TemplateError` if a stop token is between thinking and what follows it."""
        for token in filter(self.thinking.__contains__, stops):
            raise TemplateError(
                f"the template ends turns with {token!r} and also writes it inside a turn, after "
                "the thinking, so an engine that stops at this token cuts every turn before its "
                "answer\n"
                "hint: pass chat_template= with a template whose turns end with a token that it "
                "writes nowhere else, or the variable that switches thinking off in this template"
            )

    def check_calls(self, stops: Sequence[str]) -> None:
        """Raise `TemplateError` if a stop token is before a call of the same turn."""
        for token in filter(self.calls.__contains__, stops):
            raise TemplateError(
                f"the template ends turns with {token!r} and also writes it inside a turn, before "
                "a tool call, so an engine that stops at this token never reaches the call\n"
                "hint: pass chat_template= with a template whose turns end with a token that it "
                "writes nowhere else, or do not use tools"
            )


_THOUGHT, _BESIDE = "abutReasoning", "abutBeside"


def _thoughtful(calls: Sequence[Message]) -> list[Message]:
    """Return turns that think, with the thinking in each field from which templates read it."""
    blocks = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": "abutAssistant"}]
    return [
        {**assistant(), **thinks(_THOUGHT)},
        {"role": "assistant", "content": blocks},
        *({**call, **thinks(_THOUGHT)} for call in calls),
    ]


def _inside(
    rendering: Rendering,
    turns: Sequence[Message],
    prompt: str,
    *,
    thinking: bool,
    follow: Sequence[Message] = (),
) -> Iterator[str]:
    for turn in turns:
        messages = [user(), turn, *follow]
        written = after_user(render_or_none(rendering, messages, add_generation_prompt=False) or "")
        last = "abutcall" if turn.get("tool_calls") else "abutAssistant"
        before = written[: max(written.rfind(last), 0)]
        if thinking:
            # A generation prompt that ends in an empty thought has closed the thinking.
            closed = after_common_prefix(prompt, written).strip()
            if closed or _THOUGHT not in before or '"type"' in before or "'type'" in before:
                continue
        yield from (token for _, token in rendering.tokens(after_common_prefix(before, prompt)))


def _inside_calls(rendering: Rendering, calls: Sequence[Message], prompt: str) -> set[str]:
    inside: set[str] = set()
    for call in calls:
        result = {"role": "tool", "name": "abutTool", "content": "abutEarlier"}
        result["tool_call_id"] = call["tool_calls"][0]["id"]
        last = set(_inside(rendering, [call], prompt, thinking=False))
        with suppress(TemplateError):
            rendering([user(), call, result])
            last &= set(_inside(rendering, [call], prompt, thinking=False, follow=[result]))
        inside |= last
    return inside


def end_of_answer(
    rendering: Rendering,
    tail: str,
    last: str,
    *,
    ends_user: str | None,
    eos: str | None,
    what: str,
) -> TurnEnd:
    """Return the end of a plain answer.

    Args:
        rendering: of the template.
        tail: the text after the answer if messages follow.
        last: the same if nothing follows.
        ends_user: the control token that ends a user message, None where that is not known.
        eos: the EOS token of the tokenizer.
        what: the roles of the messages that follow, for errors.

    Raises:
        TemplateError: no control token ends the turn.
    """
    ours, theirs = rendering.tokens(tail), rendering.tokens(last)
    if last.strip() and (not theirs or theirs[0][0].strip()):
        raise TemplateError(
            f"after the last answer the template writes {last!r}, which does not begin with a "
            "control token of this tokenizer, so abut cannot tell where a turn ends\n"
            "hint: use the tokenizer that belongs to the template, or a template that closes "
            "each turn with one added token"
        )
    common = commonprefix([ours, theirs])
    if common:
        return _end(ours, _last(common, eos))
    if not ours or ours[0][0].strip():
        raise TemplateError(
            f"before {what} the template writes {tail!r} after the turn, which does not begin with "
            "a control token of this tokenizer, so abut cannot tell where a turn ends\n"
            "hint: use the tokenizer that belongs to the template, or a template that closes "
            "each turn with one added token"
        )
    if not theirs:
        return _end(ours, 0)
    if ours[0][1] != ends_user:
        raise TemplateError(
            f"before {what} the template does not close the turn with {theirs[0][1]!r}: "
            f"it writes {tail!r}\n{_HINT}"
        )
    end = _end(ours, 0)
    return TurnEnd(end.text, end.token, theirs[_last(theirs, eos)][1], end.count)


def end_of_calls(
    rendering: Rendering,
    tail: str,
    last: str,
    *,
    of_calls: frozenset[str],
    stops: Sequence[str],
    contents: Sequence[str],
    what: str,
) -> TurnEnd:
    """Return the end of a turn that called tools.

    If a template writes an id into a call only once it is answered, the two tails have nothing in
    common. Then only a known end of a turn can be told from the text that closes the calls.

    Args:
        rendering: of the template.
        tail: the text after the last argument if the tools' messages follow.
        last: the same if nothing follows.
        of_calls: the control tokens that are written once for each call, so that they belong to
            the calls and do not end the turn.
        stops: control tokens that are known to end a turn, the likeliest first.
        contents: those of the messages that follow.
        what: the roles of the messages that follow, for errors.

    Raises:
        TemplateError: no control token ends the turn, or abut cannot tell which one does.
    """
    ours, theirs = rendering.tokens(tail), rendering.tokens(last)
    alike = commonprefix([ours, theirs])
    if theirs and not alike:
        return _known_end(rendering, tail, theirs, stops=stops, contents=contents, what=what)
    common = [token for _, token in alike]
    known = [token for token in stops if token in common]
    own = [k for k, token in enumerate(common) if token not in of_calls]
    if known:
        k = len(common) - 1 - common[::-1].index(known[0])
    elif own:
        k = own[-1]
    else:
        k = len(common)
    if k == len(ours):
        raise TemplateError(
            f"before {what} the template writes {tail!r} after the turn, which no control token of "
            f"this tokenizer ends\n{_HINT}"
        )
    token = ours[k][1]
    return TurnEnd(token, token, token, k + 1)


def _known_end(
    rendering: Rendering,
    tail: str,
    theirs: Sequence[tuple[str, str]],
    *,
    stops: Sequence[str],
    contents: Sequence[str],
    what: str,
) -> TurnEnd:
    """Return the first known end of a turn that is in both tails.

    It may be missing in the last turn, if that is left open just before it.
    """
    begins = [tail.index(content) for content in contents if content and content in tail]
    ours = [token for _, token in rendering.tokens(tail[: min(begins, default=len(tail))])]
    last = [token for _, token in theirs]
    for stop in stops:
        if stop in ours:
            k = ours.index(stop)
            if stop in last or last == ours[:k]:
                return TurnEnd(stop, stop, stop, k + 1)
    raise TemplateError(
        f"the template writes the calls of a turn differently before {what} ({tail!r}) than at the "
        "end of a conversation, and no token that ends an answer ends both, so abut cannot tell "
        f"where the turn ends\n{_HINT}"
    )


def _last(tokens: Sequence[tuple[str, str]], eos: str | None) -> int:
    """Return the index of the token that ends the turn: the last EOS, else the last token."""
    spelled = [token for _, token in tokens]
    return max((k for k, token in enumerate(spelled) if token == eos), default=len(spelled) - 1)


def _end(tokens: list[tuple[str, str]], k: int) -> TurnEnd:
    text = "".join(before + token for before, token in tokens[: k + 1])
    return TurnEnd(text, tokens[k][1], tokens[k][1], k + 1)
