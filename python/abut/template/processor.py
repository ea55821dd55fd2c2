"""`ChatTemplateProcessor` finds the text that a chat template writes after a turn, and proves it.

Invariant: every increment (separator, new messages, generation prompt) is the text that the
template itself writes there after any history. The processor renders an increment once per *shape*
(roles, keys, empty contents) after several histories, and replays it by substitution; `prover` has
the proof. A template whose increments depend on the history is refused. Changes of the *past*, such
as removed thinking of earlier turns, are only reported, because a trajectory is append-only.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from abut.errors import TemplateError
from abut.messages import Message
from abut.parts import Part, Sampled, Scaffold, veiled
from abut.pretrained import tokenizer_of
from abut.template.calls.parser import tool_call_parser
from abut.template.calls.written import turn_parts
from abut.template.image_processor import ImageProcessor
from abut.template.increment import Increment, as_rendered, changed_content
from abut.template.mask import Layout, Masked, Plan, free_stem, json_or_none, layout_of, mask
from abut.template.placed_images import prove_roles, text_alone, with_expansions
from abut.template.prover import Prover
from abut.template.rendering import Rendering, check_variables
from abut.template.report import NEXT_MESSAGES, NextVerdict, TemplateReport, probe
from abut.template.thinking import ThinkingFormat, after_user, find_thinking
from abut.template.turn_layout import quote_difference, user
from abut.tool_calls.parsed import Parse, ParsedCalls, parsed_as_sampled

_K = TypeVar("_K")
_T = TypeVar("_T")
_REMEMBERED = 1024  # shapes and openings; a run has a few shapes, and one opening for each prompt
_PROOFS = ("_increments", "_for_all_names", "_by_layout", "_opening_plans")


class ChatTemplateProcessor:
    """A `Processor` and `PartsProcessor` derived from a chat template by rendering probes.

    The contents of messages are `Content`, so they never become control tokens. Default system
    prompts, the schemas of `tools` and the other keys of a message (`name`, `tool_calls`, ...) are
    `Scaffold`, except the control tokens that schemas and keys spell.

    Attributes:
        template_name: the name of the template's tokenizer, for errors.
        report: the findings of the probes, see `TemplateReport`.
        stop_token_ids: all ids that end a turn, the template's own first: the one of an answer,
            then the one of a turn that calls a tool.
        close_token_id: the id of the token that ends an answer.
        thinking: the format of an answer's thinking.
        tool_spellings: how often the tools' definitions spell each control token.
        text_joints: by role, the text between two text blocks in the prompt; None if the template
            does not write blocks like one string.
        images: writes images; None: messages with images are refused.
        media_token_ids: as in `images`; empty without.
        never_token_ids: as in `images`; empty without.
    """

    report: TemplateReport
    stop_token_ids: tuple[int, ...]
    close_token_id: int
    thinking: ThinkingFormat

    def __init__(
        self,
        hf_tokenizer: Any,
        *,
        tools: Sequence[Any] | None = None,
        chat_template: str | None = None,
        images: ImageProcessor | None = None,
        **chat_template_kwargs: Any,
    ) -> None:
        """Render the probes and prove the increment of a user message.

        Args:
            hf_tokenizer: a transformers tokenizer, or a multimodal processor that holds one.
            tools: functions or JSON schemas, as for `apply_chat_template`.
            chat_template: a Jinja template, or the name of one; None: the tokenizer's own.
            images: the image processor of the same model; None refuses messages with images.
            **chat_template_kwargs: variables for the template, such as `enable_thinking=False`.

        Raises:
            TemplateError: there is no template, or abut cannot append to it exactly; with `images`,
                also if it does not write images in user messages exactly.
            TypeError: a variable is an argument of `apply_chat_template` that abut sets itself.
        """
        check_variables(chat_template_kwargs)
        hf_tokenizer = tokenizer_of(hf_tokenizer)
        if chat_template is None and not hf_tokenizer.chat_template:
            raise TemplateError(
                f"the tokenizer {hf_tokenizer.name_or_path!r} has no chat template\n"
                "hint: use the chat model's tokenizer, or ChatTemplateProcessor(…, chat_template=…)"
            )
        self._tokenizer = hf_tokenizer
        self.template_name = str(hf_tokenizer.name_or_path)
        options: dict[str, Any] = {**chat_template_kwargs, "chat_template": chat_template}
        options["tools"] = None if tools is None else list(tools)
        self._render = Rendering(hf_tokenizer, options)
        self.tool_spellings = dict(self._render.veil.spelled)
        self.text_joints = dict(self._render.joints)
        self._increments: dict[str, Increment] = {}
        self._for_all_names: dict[str, Increment | None] = {}
        self._by_layout: dict[Layout, Increment] = {}
        self._opening_plans: dict[str, Plan] = {}
        self._openings: dict[str, list[Part]] = {}

        eos = hf_tokenizer.eos_token
        self.images = images
        self.media_token_ids = () if images is None else images.media_token_ids
        self.never_token_ids = () if images is None else images.never_token_ids
        self._prover = Prover(self._render, eos and str(eos), with_images=images is not None)
        self._end = self._prover.answer_end
        increment = self._proved(self._masked([user()]))
        closed = self._render([user()], add_generation_prompt=False)
        self._ends = self._end.before_stop(after_user(closed))
        self.close_token_id = self._render.control[self._end.stop]
        tool = self._verdict("tool")
        stops = [self._end.stop, *([tool.stop] if tool.appendable else [])]
        ids = [self._render.control[token] for token in stops]
        eos_id = hf_tokenizer.eos_token_id
        self.stop_token_ids = tuple(dict.fromkeys([*ids, *([] if eos_id is None else [eos_id])]))
        self._prover.inside.check_thinking(self._tokens(self.stop_token_ids))
        self.thinking = find_thinking(self._render, self._prover.generation_prompt)
        self.report = probe(
            self._render,
            increment,
            generation_prompt=self._prover.generation_prompt,
            stop_tokens=self._tokens(self.stop_token_ids),
            no_tools=None if tool.appendable else tool.because * self._prover.takes_calls,
            opened=self.thinking.opened,
        )
        self._parse_tool_calls: Parse | None = None
        if images is not None:
            roles, notes = prove_roles(self.opening, self.increment)
            notes = (*self.report.notes, *notes)
            self.report = replace(self.report, image_roles=roles, notes=notes)

    def with_tools(
        self, tools: Sequence[Any] | None, **chat_template_kwargs: Any
    ) -> "ChatTemplateProcessor":
        """Return a processor of the same template with these tools and changed variables.

        Raises:
            TemplateError: as the constructor.
        """
        changed = {**self._render.options, "tools": tools, "images": self.images}
        changed |= chat_template_kwargs
        return type(self)(self._tokenizer, **changed).with_stop_token_ids(self.stop_token_ids)

    def with_stop_token_ids(self, ids: Sequence[int]) -> "ChatTemplateProcessor":
        """Return a copy that also stops at `ids` (of a generation config), and is proved again."""
        self._prover.inside.check_thinking(self._tokens(ids))
        other = copy.copy(self)
        other.stop_token_ids = tuple(dict.fromkeys([*self.stop_token_ids, *map(int, ids)]))
        other.report = replace(self.report, stop_tokens=self._tokens(other.stop_token_ids))
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy the proofs, but neither prompts nor closures."""
        # Copies, since another thread may prove something meanwhile.
        proofs = {name: dict(self.__dict__[name]) for name in _PROOFS}
        return {**self.__dict__, **proofs, "_openings": {}, "_parse_tool_calls": None}

    def _tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(map(str, self._tokenizer.convert_ids_to_tokens(list(ids))))

    # ---- typed parts

    def opening(self, messages: Sequence[Message]) -> list[Part]:
        """Return the parts of a prompt, from the first byte to the end of the generation prompt.

        The result is compared with the real render of the messages.

        Raises:
            TemplateError: the template changes a content in a way that abut cannot replay (such as
                removing the thinking of an assistant message); shows both texts.
        """
        key = json_or_none(list(messages))
        if key is not None and (known := self._openings.get(key)) is not None:
            return list(known)
        masked = self._masked(messages)
        # Some templates write the date: a plan of yesterday is not a changed content.
        for _ in range(2):
            real = self._render(messages)
            plan = self._opening_plan(masked)
            parts = masked.fill(plan, masked.texts)
            if "".join(parts) == real:
                break
            if (texts := as_rendered(masked, plan, self._render, masked.texts)) is not None:
                parts = masked.fill(plan, texts)
                break
            self._opening_plans.clear()
        else:
            raise changed_content(messages, masked, self._opening_plan(masked), self._render)
        parts = with_expansions(self._render.typed(parts), masked.images, self.images, messages)
        _remember(self._openings, key, parts)
        return list(parts)

    def closing(self, messages: Sequence[Message] = (), *, after: int | None = None) -> list[Part]:
        """Return the missing part of a turn's end, before `messages`.

        Args:
            messages: the messages that follow, because some templates end a turn differently before
                a tool's message; without any, a user message.
            after: the last sampled id; None if the whole end is missing.

        Returns:
            The parts; empty if the turn ended with the token that ends it before these messages.

        Raises:
            TemplateError: as `increment`.
        """
        end = self._proved_for(messages)[0].end if messages else self._end
        if after is None:
            return [Scaffold(end.text)]
        if after == self._render.control[end.stop]:
            return []
        rest = end.text
        for count, (_, token) in enumerate(self._render.tokens(end.text), 1):
            if after == self._render.control[token]:
                rest = self._render.after_token(end.text, count)
        return [Scaffold(rest)] if rest else []

    def increment(self, messages: Sequence[Message]) -> list[Part]:
        """Return the text after a closed turn: separator, the new messages, generation prompt.

        Raises:
            TemplateError: the text depends on the history, or the template changes a content in a
                way that abut cannot replay; shows both texts.
        """
        proved, masked = self._proved_for(messages)
        if not messages and proved.end != self._end:
            raise TemplateError(
                "the template ends a turn differently when another assistant turn follows "
                f"directly: {quote_difference(proved.end.text, self._end.text)}\n"
                "hint: send a message between the two turns"
            )
        if masked is None:
            parts = proved.with_contents([message["content"] for message in messages])
        else:
            parts = proved.parts(self._render, messages, masked)
        images = () if masked is None else masked.images
        return with_expansions(self._render.typed(parts), images, self.images, messages)

    def turn_parts(self, message: Message) -> list[Part]:
        """Return a turn of the policy, see `TurnWritingProcessor`."""
        render = self._render
        return turn_parts(render, render.control, self.thinking, self.report.stop_tokens, message)

    def knows(self, messages: Sequence[Message] = ()) -> bool:
        """Return whether `increment` runs only abut's own code for such messages."""
        if type(self) is not ChatTemplateProcessor:  # a subclass may do anything in `increment`
            return False
        return not messages or layout_of(messages) in self._by_layout

    def verdicts(self) -> tuple[NextVerdict, ...]:
        """Return, for each kind of next messages, whether they can be appended, and if not, why."""
        return tuple(self._verdict(kind) for kind in NEXT_MESSAGES)

    # ---- text, as in trl-env

    def init_system_input(self, prompt: str) -> str:
        """Return the system block alone, to be followed by `append_user_input`.

        The block has no separator at its end, because the user's turn begins with the separator.
        A conversation without a system message begins with `opening`.
        """
        system: Message = {"role": "system", "content": prompt}
        opening = "".join(self.opening([system, user()]))
        turn = "".join(self.increment([user()]))
        if not opening.endswith(turn):
            raise TemplateError(
                "the template writes the first user turn differently, so the system block cannot "
                f"be written alone: {quote_difference(turn, opening[-len(turn) :])}\n"
                "hint: call opening() with the whole first prompt"
            )
        return opening.removesuffix(turn)

    def append_user_input(self, prompt: str) -> str:
        """Return the text after a closed turn: separator, user block and generation prompt."""
        return "".join(self.increment([user(prompt)]))

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        """Return `(reasoning, action)` by the rules of `ThinkingFormat.split`.

        One stop token at the end belongs to neither.
        """
        reasoning, action = self.thinking.split(self._without_stop(veiled(completion)))
        part = completion.part if isinstance(completion, Sampled) else str
        return str(part(reasoning)), part(action)

    def parse_tool_calls(self, action: str) -> ParsedCalls:
        """Return the tool calls in an action, by the parser that `abut.template.calls` has proved.

        Raises:
            TemplateError: abut cannot read calls, because it does not know the template's format,
                or the template writes a stop token before the call.
        """
        parse, stops = self._parse_tool_calls, self.report.stop_tokens
        if parse is None:
            self._prover.inside.check_calls(stops)
            render = self._render
            options: Any = {"tools": render.tools, "stops": stops, "thinking": self.thinking}
            parse = tool_call_parser(self._tokenizer, render, **options)
            self._parse_tool_calls = parse
        return parsed_as_sampled(lambda text: parse(self._without_stop(text)), action)

    def close_thinking(self, completion: str) -> list[Part]:
        """Return the end of thinking if a completion was cut inside its thinking; else `[]`."""
        closing = self.thinking.closing(veiled(completion))
        return [Scaffold(closing)] if closing else []

    def _without_stop(self, completion: str) -> str:
        stop = next(filter(completion.endswith, self.report.stop_tokens), "")
        completion = completion.removesuffix(stop)
        end = next((end for end in self._ends if completion.endswith(end)), "")
        return completion.removesuffix(end)

    # ---- proofs

    def _masked(self, messages: Sequence[Message], *, names: bool = False) -> Masked:
        masked = mask(messages, self._render.pattern, free_stem(messages), names=names)
        if masked.images and self.images is None:  # a template may fail of the blocks
            raise text_alone(messages)
        return masked

    def _proved_for(self, messages: Sequence[Message]) -> tuple[Increment, Masked | None]:
        """Return the increment, and the masked messages; None if only their contents matter."""
        layout = layout_of(messages)
        if layout is not None and (known := self._by_layout.get(layout)) is not None:
            return known, None
        masked = self._masked(messages)
        proved = self._proved(masked, messages)
        only_contents = len(masked.contents) == len(masked.texts)
        if layout is not None and only_contents and proved.rules is not None:
            _remember(self._by_layout, layout, proved)
        return proved, masked

    def _proved(self, masked: Masked, messages: Sequence[Message] = ()) -> Increment:
        """Return the increment of `masked`, which was made of `messages`; prove it if it is new."""
        key = masked.shape()
        proved = None if key is None else self._increments.get(key)
        if proved is None:
            proved = self._proved_for_all_names(masked, messages) or self._prover.prove(masked)
            _remember(self._increments, key, proved)
        return proved

    def _proved_for_all_names(
        self, masked: Masked, messages: Sequence[Message]
    ) -> Increment | None:
        """Return the increment that messages of several tools share, whatever their names.

        With it, a new combination of tools costs one render instead of a proof. None if there are
        not several tools, or if the template does more with names than to write them.
        """
        if sum(message["role"] == "tool" for message in messages) < 2:
            return None
        named = self._masked(messages, names=True)
        key = named.shape()
        if key is None or not named.names:
            return None
        try:
            if key in self._for_all_names:
                shared = self._for_all_names.get(key)
            else:
                _remember(self._for_all_names, key, None)
                shared = self._for_all_names[key] = self._prover.prove(named)
            if shared is None:
                return None
            proved = shared.with_names(named)
            written = proved.written(self._render, masked.messages)
        except TemplateError:
            return None
        return proved if "".join(masked.fill(proved.plan, masked.placeholders)) == written else None

    def _verdict(self, kind: str) -> NextVerdict:
        masked = self._masked(NEXT_MESSAGES[kind])
        try:
            proved = self._proved(masked)
        except TemplateError as error:
            return NextVerdict(kind, appendable=False, because=str(error).partition("\n")[0])
        return NextVerdict.proved(kind, proved, masked)

    def _opening_plan(self, masked: Masked) -> Plan:
        key = masked.shape()
        plan = None if key is None else self._opening_plans.get(key)
        if plan is None:
            plan = masked.plan(self._render(masked.messages))
            _remember(self._opening_plans, key, plan)
        return plan


def _remember(cache: dict[_K, _T], key: _K | None, value: _T) -> None:
    if key is None:
        return
    if len(cache) >= _REMEMBERED:
        cache.clear()
    cache[key] = value
