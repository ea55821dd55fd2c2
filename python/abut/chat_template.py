"""`ChatTemplateProcessor`: what a chat template writes after a turn, proved before it is used.

Invariant: every increment (separator, new messages, generation prompt) is the text that the
template itself writes at that place, whatever the history. It is rendered once per *shape* (roles,
keys, what is empty) behind several histories, and replayed by substitution. A template whose
increments depend on the history is refused. What a template would change in the *past*, such as the
thinking of earlier turns, is reported: a trajectory is append-only and keeps it.

All rendering is transformers' own (`apply_chat_template`), never a second template engine.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from abut.errors import TemplateError
from abut.parts import Part, Scaffold
from abut.placeholder import Masked, Message, Plan, fill, free_stem, json_or_none, mask
from abut.template_report import TemplateReport, assistant, both, probe, roles, user
from abut.thinking import find_thinking
from abut.tool_calls import Parse, ParsedCalls, tool_call_parser

_T = TypeVar("_T")
_REMEMBERED = 1024  # shapes and openings; a run has a few shapes, and one opening for each prompt

# Contents that templates are known to treat apart: trimmed, escaped, parsed, taken for a switch.
_HARD_CONTENTS = (
    " \n",
    " \n\t{} \n",
    "<think>\n{}\n</think>\n\n{}",
    "\n</think>\n\n{}",
    "<tool_response>\n{}\n</tool_response>",
    '<tool_call>\n{"name": "{}", "arguments": {}}\n</tool_call>',
    "{{ {} }} {% if x %}{# \"'&<>\\",
    '{"{}": [1, true, null]}',
    "/no_think {} /think",
)


@dataclass(frozen=True)
class _Increment:
    """A proved increment. `verbatim`: the template writes every content of this shape as it is."""

    plan: Plan
    verbatim: bool


class ChatTemplateProcessor:
    """A `Processor` and `PartsProcessor` derived from a chat template by rendering probes.

    The contents of messages are `Content`: whatever they spell, they mint no control token. All
    else is `Scaffold`, the schemas of `tools` and a default system prompt included: they are text
    of the developer. Other keys of a message (`name`, `tool_calls`, `tool_call_id`, ...) go to the
    template as they are and count as scaffold, but for control tokens that they spell.

    Attributes:
        report: what the probes found, see `TemplateReport`.
        stop_token_ids: every id that ends a turn, the template's own first.
        close_token_id: the id of the template's own stop token, which `closing` writes.
    """

    report: TemplateReport
    stop_token_ids: tuple[int, ...]
    close_token_id: int

    def __init__(
        self,
        hf_tokenizer: Any,
        *,
        tools: Sequence[Any] | None = None,
        chat_template: str | None = None,
        **chat_template_kwargs: Any,
    ) -> None:
        """Render the probes and prove the increment of a user message.

        Args:
            hf_tokenizer: a transformers tokenizer.
            tools: functions or JSON schemas, as for `apply_chat_template`.
            chat_template: a Jinja template, or the name of one; None: the tokenizer's own.
            **chat_template_kwargs: variables for the template, such as `enable_thinking=False`.

        Raises:
            TemplateError: there is no template, or it cannot be appended to exactly.
        """
        if chat_template is None and not hf_tokenizer.chat_template:
            raise TemplateError(
                f"the tokenizer {hf_tokenizer.name_or_path!r} has no chat template\n"
                "hint: pass one with chat_template=, or use the tokenizer of the chat model"
            )
        self._tokenizer = hf_tokenizer
        self._options = {
            **chat_template_kwargs,
            "tools": None if tools is None else list(tools),
            "chat_template": chat_template,
        }
        # Whitespace-only added tokens are text that got an id (Gemma), not control tokens.
        self._control: dict[str, int] = {
            token: i for token, i in hf_tokenizer.get_added_vocab().items() if token.strip()
        }
        longest_first = sorted(self._control, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._increments: dict[str, _Increment] = {}
        self._opening_plans: dict[str, Plan] = {}
        self._openings: dict[str, list[Part]] = {}

        end = self._after_answer([user()], [], add_generation_prompt=False)
        closes = [token for token in longest_first if end.startswith(token)]
        if not closes:
            raise TemplateError(
                f"after the last answer the template writes {end!r}, which does not begin with a "
                "control token of this tokenizer, so nothing says where a turn ends\n"
                "hint: use the tokenizer that belongs to the template, or a template that closes "
                "each turn with one added token"
            )
        self._close = closes[0]
        self.close_token_id = self._control[self._close]
        eos = hf_tokenizer.eos_token_id
        self.stop_token_ids = _unique([self.close_token_id, *([] if eos is None else [eos])])
        increment = self._proved(self._masked([user()]))
        self.report = probe(
            self._render,
            close=self._close,
            separator=_separator(end.removeprefix(self._close), increment.plan),
            stop_tokens=self._tokens(self.stop_token_ids),
            verbatim=increment.verbatim,
        )
        self._thinking = find_thinking(self._render, self.report.generation_prompt)
        self._parse_tool_calls: Parse | None = None

    def with_stop_token_ids(self, ids: Sequence[int]) -> "ChatTemplateProcessor":
        """A copy that also stops at `ids`, say those of a generation config."""
        other = copy.copy(self)
        other.stop_token_ids = _unique([*self.stop_token_ids, *ids])
        other.report = replace(self.report, stop_tokens=self._tokens(other.stop_token_ids))
        return other

    def _tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(map(str, self._tokenizer.convert_ids_to_tokens(list(ids))))

    # ---- typed parts

    def opening(self, messages: Sequence[Message]) -> list[Part]:
        """From the first byte up to and with the generation prompt.

        The replay is compared with the real render of the real messages.

        Raises:
            TemplateError: the template changes a content (it trims, escapes, or strips the
                thinking of an assistant message); says which, with both texts.
        """
        key = json_or_none(list(messages))
        if key is not None and (known := self._openings.get(key)) is not None:
            return list(known)
        masked = self._masked(messages)
        real = self._render(messages)
        parts = self._replay_opening(masked)
        if "".join(parts) != real:
            # Some templates write the date: a plan of yesterday is not a changed content.
            self._opening_plans.clear()
            parts = self._replay_opening(masked)
        if "".join(parts) != real:
            raise self._changed_content(messages, masked)
        _remember(self._openings, key, parts)
        return list(parts)

    def closing(self) -> list[Part]:
        """What closes a turn that did not end on the template's stop token."""
        return [Scaffold(self._close)]

    def increment(self, messages: Sequence[Message]) -> list[Part]:
        """After a closed assistant turn: separator, the new messages, generation prompt.

        Raises:
            TemplateError: what the template writes here depends on the history, or it changes a
                content; with the reason and both texts.
        """
        masked = self._masked(messages)
        proved = self._proved(masked)
        parts = fill(proved.plan, masked.texts)
        if not proved.verbatim:
            real = self._after_answer([user()], messages)
            if self._close + "".join(parts) != real:
                raise TemplateError(
                    f"the template changes a content of {roles(messages)}, so it cannot be "
                    f"replayed: {both(self._close + ''.join(parts), real)}\n"
                    "hint: give the messages the form that the template writes (most often: "
                    "without whitespace around them)"
                )
        return parts

    # ---- text, as in trl-env

    def init_system_input(self, prompt: str) -> str:
        """The system block alone, such that `append_user_input` can follow it.

        It ends on the close of the block, without the separator: the user's turn begins with it.
        A conversation without a system message begins with `opening`.
        """
        system: Message = {"role": "system", "content": prompt}
        opening = "".join(self.opening([system, user()]))
        turn = "".join(self.increment([user()]))
        if not opening.endswith(turn):
            raise TemplateError(
                "the first user turn is not written like the later ones, so there is no system "
                f"block alone: {both(turn, opening[-len(turn) :])}\n"
                "hint: use opening(), which takes the whole first prompt"
            )
        return opening.removesuffix(turn)

    def append_user_input(self, prompt: str) -> str:
        """Separator, user block and generation prompt: what is written after a closed turn."""
        return "".join(self.increment([user(prompt)]))

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        """`(reasoning, action)`; see `abut.thinking.ThinkingFormat.split` for the rules.

        The text of one stop token at the end, if it is there, belongs to neither.
        """
        return self._thinking.split(self._without_stop(completion))

    def parse_tool_calls(self, action: str) -> ParsedCalls:
        """The tool calls in an action, see `abut.tool_calls.tool_call_parser`.

        Raises:
            TemplateError: the template writes no tool calls, or in a form that is not known.
        """
        if self._parse_tool_calls is None:
            self._parse_tool_calls = tool_call_parser(
                self._tokenizer, self._render, tools=self._options["tools"], stop=self._close
            )
        return self._parse_tool_calls(self._without_stop(action))

    def close_thinking(self, completion: str) -> list[Part]:
        """What closes thinking that a completion was cut in, as the template would; else `[]`."""
        closing = self._thinking.closing(completion)
        return [Scaffold(closing)] if closing else []

    def _without_stop(self, completion: str) -> str:
        for token in self.report.stop_tokens:
            if completion.endswith(token):
                return completion.removesuffix(token)
        return completion

    # ---- rendering

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(messages),
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **self._options,
            )
        except Exception as error:  # a template is foreign code and can raise anything
            raise TemplateError(
                f"the template does not render {roles(messages)}: "
                f"{type(error).__name__}: {error}\n"
                "hint: use roles, keys and an order that the template takes, or pass another one "
                "with chat_template="
            ) from error
        return str(rendered)

    def _masked(self, messages: Sequence[Message]) -> Masked:
        return mask(messages, self._control_pattern, free_stem(messages))

    def _after_answer(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        *,
        thinking: str = "",
        add_generation_prompt: bool = True,
    ) -> str:
        """What the template writes after the answer that follows `history`."""
        answer = free_stem(new) + "answer"
        rendered = self._render(
            [*history, assistant(thinking + answer), *new],
            add_generation_prompt=add_generation_prompt,
        )
        if (count := rendered.count(answer)) != 1:
            raise TemplateError(
                f"the template writes the answer of message {len(history)} (assistant) {count} "
                "times\nhint: pass a template that writes the content of assistant messages "
                "once, with chat_template="
            )
        return rendered.partition(answer)[2]

    # ---- proofs

    def _proved(self, masked: Masked) -> _Increment:
        key = masked.shape()
        proved = None if key is None else self._increments.get(key)
        if proved is None:
            proved = self._prove(masked)
            _remember(self._increments, key, proved)
        return proved

    def _prove(self, masked: Masked) -> _Increment:
        """The increment of one shape, the same behind every history."""
        new = masked.messages
        if not new:
            raise TemplateError("increment of no messages\nhint: pass at least one message")
        first = self._after_answer([user()], new)
        for history, thinking, optional in _histories():
            try:
                tail = self._after_answer(history, new, thinking=thinking)
            except TemplateError as error:
                if optional and error.__cause__ is not None:
                    continue  # the template itself refuses such a history, so none can come
                raise
            if tail != first:
                raise TemplateError(
                    f"what the template writes for {roles(new)} depends on the history: after "
                    f"{roles([*history, assistant()])} it is not what it is after [user, "
                    f"assistant]: {both(tail, first)}\n"
                    "hint: such a template cannot be appended to; pass another one with "
                    "chat_template="
                )
        if not first.startswith(self._close):
            raise TemplateError(
                f"before {roles(new)} the template does not close the turn with {self._close!r}: "
                f"it writes {first!r}\n"
                "hint: such a template cannot be appended to; pass another one with chat_template="
            )
        plan = masked.plan(first.removeprefix(self._close))
        return _Increment(plan, self._writes_verbatim(masked, plan))

    def _writes_verbatim(self, masked: Masked, plan: Plan) -> bool:
        hard = [*_HARD_CONTENTS, "{}".join(["", *self._control, ""])]
        for form in hard:
            new, texts = masked.with_contents(form)
            try:
                tail = self._after_answer([user()], new)
            except TemplateError:
                return False
            if tail != self._close + "".join(fill(plan, texts)):
                return False
        return True

    def _replay_opening(self, masked: Masked) -> list[Part]:
        key = masked.shape()
        plan = None if key is None else self._opening_plans.get(key)
        if plan is None:
            plan = masked.plan(self._render(masked.messages))
            _remember(self._opening_plans, key, plan)
        return fill(plan, masked.texts)

    def _changed_content(self, messages: Sequence[Message], masked: Masked) -> TemplateError:
        """The error that names the message whose content the template changes."""
        for k, message in enumerate(messages):
            alone = [*masked.messages[:k], message, *masked.messages[k + 1 :]]
            texts = [
                masked.texts[i] if masked.message_of[i] == k else placeholder
                for i, placeholder in enumerate(masked.placeholders)
            ]
            ours = "".join(fill(masked.plan(self._render(masked.messages)), texts))
            if ours != (theirs := self._render(alone)):
                break
        else:  # only together do they change something
            k, ours, theirs = -1, "".join(self._replay_opening(masked)), self._render(messages)
        what = "some message" if k < 0 else f"message {k} ({messages[k]['role']})"
        return TemplateError(
            f"the template changes the content of {what}: {both(ours, theirs)}\n"
            "hint: give the message the form that the template writes (without whitespace around "
            "it; an earlier assistant message without its thinking)"
        )


def _histories() -> list[tuple[list[Message], str, bool]]:
    """Histories to prove an increment behind: messages, thinking before the answer, optional."""
    turn = [user(), assistant()]
    thought = "<think>\nabutReasoning\n</think>\n\n"
    tool: Message = {"role": "tool", "content": "abutEarlier"}
    system: Message = {"role": "system", "content": "abutEarlier"}
    return [
        ([*turn, *turn, user()], "", False),
        ([user()], thought, False),
        ([user(), assistant(thought + "abutEarlier"), user()], "", False),
        ([system, user()], "", True),
        ([system, *turn, *turn, user()], thought, True),
        ([*turn, tool], "", True),
        ([*turn, tool, tool], thought, True),
    ]


def _separator(end: str, plan: Plan) -> str:
    """What follows a close in every case; some templates write an EOS after the last turn."""
    if isinstance(plan[0], str) and plan[0].startswith(end):
        return end
    return end[: len(end) - len(end.lstrip())]


def _unique(ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(i) for i in ids))


def _remember(cache: dict[str, _T], key: str | None, value: _T) -> None:
    if key is None:
        return
    if len(cache) >= _REMEMBERED:
        cache.clear()
    cache[key] = value
