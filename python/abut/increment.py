"""What a template writes after an assistant turn: found behind one history, proved behind others.

Invariant: an `Increment` exists only where the template writes the same text behind every history
that it was tried on. The turn itself is never part of it: the model sampled that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from abut.content_rule import ContentRule, compared, find_rules, replayed
from abut.errors import TemplateError
from abut.parts import Part
from abut.placeholder import Masked, Message, Plan, not_written
from abut.probe_messages import assistant, both, roles, user
from abut.rendering import Rendering
from abut.turn_end import TurnEnd, end_of_answer, end_of_calls
from abut.turn_form import CALLING, NO_NAME, PLAIN, TurnForm

_SYSTEM = "abutSystem"
_BESIDE = "abutReasoning"
_EARLIER: Message = {
    "role": "tool",
    "name": "abutEarlierTool",
    "tool_call_id": "abutEarly",
    "content": "abutEarlier",
}


@dataclass(frozen=True)
class Increment:
    """The proved increment of one shape.

    Attributes:
        form: the assistant turn that it was found after.
        end: how that turn ends; the plan begins after it.
        plan: what the template writes there.
        rules: what it does to each content, None where that has to be seen each time.
        moves: what the template writes in it, although it belongs to the past: the system message,
            or the text beside a tool call. The increment leaves it out: a trajectory has it where
            it was first.
    """

    form: TurnForm
    end: TurnEnd
    plan: Plan
    rules: tuple[ContentRule, ...] | None
    moves: tuple[str, ...]

    def parts(
        self, rendering: Rendering, messages: Sequence[Message], masked: Masked
    ) -> list[Part]:
        """The increment of `messages`, which `masked` was made from.

        Raises:
            TemplateError: the template changes a content in a way that is not replayed.
        """
        # A content that is whitespace is rare, and templates branch on it once it is trimmed.
        blank = any(not masked.texts[i].strip() for i in masked.contents)
        if self.rules is not None and not blank:
            return masked.fill(self.plan, replayed(self.rules, masked.texts))
        texts = compared(masked, self.plan, lambda new: self._written(rendering, new), masked.texts)
        if texts is None:
            ours = "".join(masked.fill(self.plan, masked.texts))
            raise TemplateError(
                f"the template changes a content of {roles(messages)}, so it cannot be "
                f"replayed: {both(ours, self._written(rendering, messages))}\n"
                "hint: give the messages the form that the template writes"
            )
        return masked.fill(self.plan, texts)

    def _written(self, rendering: Rendering, new: Sequence[Message]) -> str:
        tail = rendering.after_turn([user()], self.form, new)
        return rendering.after_token(tail, self.end.count)


class Prover:
    """Proves increments of one template.

    Attributes:
        generation_prompt: what asks the model for its turn.
        answer_end: how a plain answer ends before a user message.
    """

    def __init__(self, rendering: Rendering, eos: str | None) -> None:
        self._rendering = rendering
        self._eos = eos
        self._last = rendering.after_turn([user()], PLAIN, [], add_generation_prompt=False)
        self.generation_prompt = self._generation_prompt()
        self._ends_user = self._end_of_user()
        self._calling: TurnForm | None = next(filter(self._takes, CALLING), None)
        self.answer_end: TurnEnd | None = None

    def prove(self, masked: Masked) -> Increment:
        """The increment of one shape, the same behind every history.

        Raises:
            TemplateError: the template does not take such messages, or what it writes depends on
                the history.
        """
        new = masked.messages
        if not new:
            raise TemplateError("increment of no messages\nhint: pass at least one message")
        form, first = self._find_form(masked)
        self._check_names(form, new, first)
        end = self._end(form, masked, first)
        rest = self._rendering.after_token(first, end.count)
        moves: dict[str, None] = {}
        for history, thinking, keys, optional in self._histories():
            try:
                tail = self._rendering.after_turn(history, form, new, thinking=thinking, keys=keys)
            except TemplateError as error:
                if optional and error.__cause__ is not None:
                    continue  # the template itself refuses such a history, so none can come
                raise
            if tail == first:
                continue
            if form is not PLAIN and _inserts(tail, first, _BESIDE):
                if (
                    _BESIDE in tail[len(tail) - len(rest) :]
                ):  # else it is written before the turn ends
                    moves["the text beside a tool call"] = None
            elif _inserts(tail, first, _SYSTEM):
                moves["the system message"] = None
            else:
                raise TemplateError(
                    f"what the template writes for {roles(new)} depends on the history: after "
                    f"{roles([*history, assistant()])} it is not what it is after [user, "
                    f"assistant]: {both(tail, first)}\n"
                    "hint: such a template cannot be appended to; pass another one with "
                    "chat_template="
                )
        plan = masked.plan(rest)
        increment = Increment(form, end, plan, None, tuple(moves))
        rules = find_rules(
            masked,
            plan,
            lambda other: increment._written(self._rendering, other),
            spelled=tuple(self._rendering.control),
        )
        return replace(increment, rules=rules)

    def _find_form(self, masked: Masked) -> tuple[TurnForm, str]:
        """The assistant turn that the template takes before the messages, and what follows it."""
        new = masked.messages
        forms = [PLAIN]
        if new[0]["role"] == "tool":
            known = [self._calling] if self._calling else []
            forms = [*dict.fromkeys([*known, *CALLING]), PLAIN] if known else [PLAIN]
        for form in forms:
            try:
                first = self._rendering.after_turn([user()], form, new)
                masked.plan(first)  # the contents are written
                self._check_empty(form, new)
            except TemplateError as error:
                if form is not PLAIN:
                    continue
                raise error
            return form, first
        raise AssertionError("the last form is PLAIN, which returns or raises")

    def _takes(self, form: TurnForm) -> bool:
        try:
            tail = self._rendering.after_turn([user()], form, [_EARLIER])
        except TemplateError:
            return False
        return _EARLIER["content"] in tail

    def _check_empty(self, form: TurnForm, new: Sequence[Message]) -> None:
        """A role whose contents the template drops is not taken for one that says nothing."""
        said = [{**m, "content": f"abutSaid{k}"} for k, m in enumerate(new)]
        for k, message in enumerate(new):
            if message.get("content") != "":
                continue
            tail = self._rendering.after_turn([user()], form, [*new[:k], said[k], *new[k + 1 :]])
            if f"abutSaid{k}" not in tail:
                raise TemplateError(not_written(k, message))

    def _check_names(self, form: TurnForm, new: Sequence[Message], first: str) -> None:
        """A tool message's header names its own function, if it names one."""
        if NO_NAME in first:
            raise TemplateError(
                f"the template writes the name of the function for {roles(new)}, and the messages "
                'have none\nhint: write {"role": "tool", "name": "...", "content": "..."}'
            )
        names = list(dict.fromkeys(m["name"] for m in new if m["role"] == "tool" and m.get("name")))
        if form is PLAIN or len(names) < 2:
            return
        probes = {name: f"abutName{k}" for k, name in enumerate(names)}
        named = [{**m, "name": probes[m["name"]]} if m.get("name") in probes else m for m in new]
        tail = self._rendering.after_turn([user()], form, named)
        missing = [name for name, probe in probes.items() if probe not in tail]
        if missing and len(missing) < len(names):
            raise TemplateError(
                f"the template writes the name of the function for {roles(new)}, but not "
                f"{missing[0]!r}: it takes all messages for answers to one call\n"
                "hint: let a turn call one function, or pass another template with chat_template="
            )

    def _end(self, form: TurnForm, masked: Masked, first: str) -> TurnEnd:
        rendering, what = self._rendering, roles(masked.messages)
        if form is PLAIN:
            return end_of_answer(
                rendering, first, self._last, ends_user=self._ends_user, eos=self._eos, what=what
            )
        new = masked.messages
        last = rendering.after_turn([user()], form, new, follow=[], add_generation_prompt=False)
        known = [] if self.answer_end is None else [self.answer_end.token, self.answer_end.stop]
        return end_of_calls(
            rendering,
            first,
            last,
            of_calls=self._tokens_of_calls(form, new),
            stops=[*known, *([self._eos] if self._eos else [])],
            what=what,
        )

    def _tokens_of_calls(self, form: TurnForm, new: Sequence[Message]) -> frozenset[str]:
        counts = []
        for repeat in (1, 2):
            message, _ = form.turn(new, "abut", repeat=repeat)
            try:
                rendered = self._rendering([user(), message], add_generation_prompt=False)
            except TemplateError:  # it takes one call only
                return frozenset()
            counts.append([token for _, token in self._rendering.tokens(rendered)])
        once, twice = counts
        return frozenset(token for token in twice if twice.count(token) > once.count(token))

    def _generation_prompt(self) -> str:
        prompt = self._rendering([user()])
        closed = self._rendering([user()], add_generation_prompt=False)
        if prompt.startswith(closed):
            return prompt.removeprefix(closed)
        # Something else is written where nothing is asked for, such as an EOS.
        ours, theirs = (self._rendering.pattern.split(text) for text in (prompt, closed))
        same = next(k for k, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y)
        return "".join(ours[same:])

    def _end_of_user(self) -> str | None:
        """The control token that ends a user message, where it does not open the next turn."""
        said = user("abutSaid")
        after = self._rendering.after_turn([user()], PLAIN, [said]).partition(said["content"])[2]
        tokens = self._rendering.tokens(after)
        opening = self._rendering.tokens(self.generation_prompt)
        if not tokens or (opening and tokens[0][1] == opening[0][1]):
            return None
        return tokens[0][1]

    def _histories(self) -> Iterator[tuple[list[Message], str, dict[str, Any], bool]]:
        """Histories to prove behind: messages, thinking before the turn, keys of it, optional."""
        turn = [user(), assistant()]
        thought = f"<think>\n{_BESIDE}\n</think>\n\n"
        system: Message = {"role": "system", "content": _SYSTEM}
        yield [*turn, *turn, user()], "", {}, False
        yield [user()], thought, {}, False
        yield [user(), assistant(thought + "abutEarlier"), user()], "", {}, False
        cut = assistant("<think>\nabutCut")
        yield [user(), assistant(""), user(), cut, user()], "", {}, True
        yield [system, user()], "", {}, True
        yield [system, *turn, *turn, user()], thought, {}, True
        yield [*turn, _EARLIER], "", {}, True
        yield [*turn, _EARLIER, _EARLIER], thought, {}, True
        for key in ("reasoning_content", "reasoning", "thinking"):
            yield [user()], "", {key: _BESIDE}, True
        if self._calling is not None:
            call, _ = self._calling.turn([_EARLIER], "abut")
            called = [user(), call, _EARLIER]
            yield called, "", {}, True
            yield [*called, *called[1:]], "", {}, True
            yield [*called, assistant(), user()], "", {}, True
            yield [system, *called, assistant(), *called], thought, {}, True


def _inserts(tail: str, first: str, marker: str) -> bool:
    """Whether `tail` is `first` with one piece put in, and the marker in that piece."""
    before, found, after = tail.partition(marker)
    if not found or len(tail) <= len(first):
        return False
    end = 0  # of what both end with
    for x, y in zip(reversed(after), reversed(first), strict=False):
        if x != y:
            break
        end += 1
    return before.startswith(first[: len(first) - end])
