"""Proves increments: the text found after one history must be the same after others.

Invariant: a string that differs after any history that was tried gets no `Increment`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os.path import commonprefix
from typing import Any, NamedTuple

from abut.errors import TemplateError
from abut.messages import Message, texts_of
from abut.template.increment import Increment, find_rules
from abut.template.mask import Masked, not_written
from abut.template.rendering import Rendering
from abut.template.turn_end import TurnEnd, TurnInside, end_of_answer, end_of_calls
from abut.template.turn_layout import (
    CALLING,
    NO_NAME,
    PLAIN,
    REASONING_KEYS,
    WITH_TEMPLATE,
    TurnLayout,
    assistant,
    quote_difference,
    roles,
    user,
)

_SYSTEM = "abutSystem"
_BESIDE = "abutReasoning"
_SEEN = {"type": "text", "text": "abutSeen"}
_EARLIER: Message = {
    "role": "tool",
    "name": "abutEarlierTool",
    "tool_call_id": "abutEarly",
    "content": "abutEarlier",
}


class _History(NamedTuple):
    """A history after which an increment is proved: messages, and how the turn is given.

    An `optional` one is skipped if the template refuses it, because no such conversation can come.
    """

    messages: list[Message]
    thinking: str = ""
    keys: dict[str, Any] | None = None
    optional: bool = True


class Prover:
    """Proves increments of one template.

    Attributes:
        generation_prompt: the text that asks the model for its turn.
        answer_end: the end of a plain answer before a user message.
        inside: the control tokens inside turns, none of which may be a stop token.
    """

    def __init__(self, rendering: Rendering, eos: str | None, *, with_images: bool = False) -> None:
        """Find how an answer ends.

        Args:
            rendering: of the template.
            eos: the EOS token of the tokenizer.
            with_images: prove increments after histories with images as well. A template may
                count them: "Picture 2".

        Raises:
            TemplateError: no control token ends it.
        """
        self._rendering = rendering
        self._eos = eos
        self._with_images = with_images
        self._last = rendering.after_turn([user()], PLAIN, [], add_generation_prompt=False)
        self.generation_prompt = self._generation_prompt()
        said = user("abutSaid")
        tail = rendering.after_turn([user()], PLAIN, [said])
        self._ends_user = self._end_of_user(tail.partition(said["content"])[2])
        self.answer_end = self._end_of_answer([said], tail)
        self._calling = next(filter(self._takes, CALLING), None)
        self.inside = TurnInside.of(rendering, self._calling)

    @property
    def takes_calls(self) -> bool:
        """Return whether the template writes turns that call tools."""
        return self._calling is not None

    def prove(self, masked: Masked) -> Increment:
        """Return the increment of one shape, the same after every history.

        The increment of no messages is the text that asks for one more turn after a turn.

        Raises:
            TemplateError: the template does not take such messages, its text depends on the
                history, or a turn's end is inside the turn before them.
        """
        new = masked.messages
        layout, first = self._find_layout(masked)
        if layout is PLAIN:
            end = self._end_of_answer(new, first)
        else:
            end = self._end_of_calls(layout, new, first)
            self.inside.check_calls([self.answer_end.stop, end.stop, self._eos or ""])
        rest = self._rendering.after_token(first, end.count)
        self._check_names(layout, end, new, rest)
        moves = self._moves(layout, new, first, end.token + rest)
        increment = Increment(layout, end, masked.plan(rest), None, moves)
        rules = find_rules(
            masked,
            increment.plan,
            lambda other: increment.written(self._rendering, other),
            spelled=tuple(self._rendering.control),
        )
        return replace(increment, rules=rules)

    def _moves(
        self, layout: TurnLayout, new: Sequence[Message], first: str, ending: str
    ) -> tuple[str, ...]:
        """Prove that a history changes nothing but where some texts are; return these moves.

        `ending` is the end of `first` from the token that ends the turn.
        """
        moves: dict[str, None] = {}
        for history in self._histories():
            try:
                tail = self._rendering.after_turn(
                    history.messages, layout, new, thinking=history.thinking, keys=history.keys
                )
            except TemplateError as error:
                if history.optional and error.__cause__ is not None:
                    continue
                if layout is not PLAIN and history.thinking:
                    continue  # some templates write calls only where the content is empty (Phi-4)
                raise
            if tail == first:
                continue
            behind = None if layout is PLAIN else _behind_inserted(tail, first, _BESIDE)
            if behind is not None:
                moved = "after the call" if behind >= len(ending) else "with these messages"
                moves[f"the text of a tool call's turn {moved}"] = None
            elif layout is not PLAIN and _ends_on(tail, first, _BESIDE, new):
                moves["the text of a tool call's turn with these messages"] = None
            elif _behind_inserted(tail, first, _SYSTEM) is not None:
                moves["the system message with these messages"] = None
            else:
                raise TemplateError(
                    f"the template's text for {roles(new)} depends on the history: after "
                    f"{roles([*history.messages, assistant()])} it differs from the text after "
                    f"[user, assistant]: {quote_difference(tail, first)}\n"
                    "hint: abut cannot append to such a template exactly; pass another one: "
                    f"{WITH_TEMPLATE}"
                )
        return tuple(moves)

    def _find_layout(self, masked: Masked) -> tuple[TurnLayout, str]:
        """Return the assistant turn that the template takes before the messages, and the rest."""
        new = masked.messages

        def written(layout: TurnLayout) -> str:
            first = self._rendering.after_turn([user()], layout, new)
            masked.plan(first)  # raises unless the contents are written
            self._check_empty(layout, new)
            return first

        if new and new[0]["role"] == "tool" and self._calling is not None:
            for layout in dict.fromkeys([self._calling, *CALLING]):
                with contextlib.suppress(TemplateError):
                    return layout, written(layout)
        return PLAIN, written(PLAIN)

    def _takes(self, layout: TurnLayout) -> bool:
        try:
            tail = self._rendering.after_turn([user()], layout, [_EARLIER])
        except TemplateError:
            return False
        return _EARLIER["content"] in tail

    def _check_empty(self, layout: TurnLayout, new: Sequence[Message]) -> None:
        """Raise `TemplateError` if the template drops a content even where it is not empty."""
        said = [{**m, "content": f"abutSaid{k}"} for k, m in enumerate(new)]
        for k, message in enumerate(new):
            if message.get("content") != "":
                continue
            tail = self._rendering.after_turn([user()], layout, [*new[:k], said[k], *new[k + 1 :]])
            if f"abutSaid{k}" not in tail:
                raise TemplateError(not_written(k, message))

    def _check_names(
        self, layout: TurnLayout, end: TurnEnd, new: Sequence[Message], rest: str
    ) -> None:
        """Raise `TemplateError` if a tool message's header names another function than its own."""
        if NO_NAME in rest:
            raise TemplateError(
                f"the template writes the name of the function for {roles(new)}, but the messages "
                "do "
                'not have one\nhint: write {"role": "tool", "name": "...", "content": "..."}'
            )
        names = list(dict.fromkeys(m["name"] for m in new if m["role"] == "tool" and m.get("name")))
        if layout is PLAIN or len(names) < 2:
            return
        probes = {name: f"abutName{k}" for k, name in enumerate(names)}
        named = [{**m, "name": probes[m["name"]]} if m.get("name") in probes else m for m in new]
        tail = self._rendering.after_turn([user()], layout, named)
        rest = self._rendering.after_token(tail, end.count)
        missing = [name for name, probe in probes.items() if probe not in rest]
        if missing and len(missing) < len(names):
            raise TemplateError(
                f"the template writes the name of the function for {roles(new)}, but not "
                f"{missing[0]!r}: it treats all the messages as answers to one call\n"
                "hint: let each turn call only one function, or pass another template: "
                f"{WITH_TEMPLATE}"
            )

    def _end_of_answer(self, new: Sequence[Message], first: str) -> TurnEnd:
        return end_of_answer(
            self._rendering,
            first,
            self._last,
            ends_user=self._ends_user,
            eos=self._eos,
            what=roles(new),
        )

    def _end_of_calls(self, layout: TurnLayout, new: Sequence[Message], first: str) -> TurnEnd:
        last = self._rendering.after_turn(
            [user()], layout, new, follow=[], add_generation_prompt=False
        )
        stops = [self.answer_end.token, self.answer_end.stop, *([self._eos] if self._eos else [])]
        return end_of_calls(
            self._rendering,
            first,
            last,
            of_calls=self._tokens_of_calls(layout, new),
            stops=stops,
            contents=[text for message in new for text in texts_of(message)],
            what=roles(new),
        )

    def _tokens_of_calls(self, layout: TurnLayout, new: Sequence[Message]) -> frozenset[str]:
        counts = []
        for repeat in (1, 2):
            message, _ = layout.turn(new, "abut", repeat=repeat)
            try:
                rendered = self._rendering([user(), message], add_generation_prompt=False)
            except TemplateError:  # it takes one call only
                return frozenset()
            counts.append([token for _, token in self._rendering.tokens(rendered)])
        once, twice = counts
        return frozenset(token for token in twice if twice.count(token) > once.count(token))

    def _generation_prompt(self) -> str:
        """Return the text that is written only when the model is asked for its turn."""
        prompt = self._rendering([user()])
        closed = self._rendering([user()], add_generation_prompt=False)
        if prompt.startswith(closed):
            return prompt.removeprefix(closed)
        # Something else is written where nothing is asked for, such as an EOS.
        ours, theirs = (self._rendering.pattern.split(text) for text in (prompt, closed))
        return "".join(ours[len(commonprefix([ours, theirs])) :])

    def _end_of_user(self, after: str) -> str | None:
        """Return the control token that ends a user message; None if it opens the next turn."""
        tokens = self._rendering.tokens(after)
        opening = self._rendering.tokens(self.generation_prompt)
        if not tokens or (opening and tokens[0][1] == opening[0][1]):
            return None
        return tokens[0][1]

    def _histories(self) -> Iterator[_History]:
        turn = [user(), assistant()]
        thought = f"<think>\n{_BESIDE}\n</think>\n\n"
        system: Message = {"role": "system", "content": _SYSTEM}
        # Later turns, and thinking in this turn or in an earlier one, where many drop it.
        yield _History([*turn, *turn, user()], optional=False)
        yield _History([user()], thought, optional=False)
        yield _History([user(), assistant(thought + "abutEarlier"), user()], optional=False)
        # An answer without a word, and one that was cut in its thinking.
        cut = assistant("<think>\nabutCut")
        yield _History([user(), assistant(""), user(), cut, user()])
        # Some templates write the system message into the last user turn.
        yield _History([system, user()])
        yield _History([system, *turn, *turn, user()], thought)
        # Tool messages without a call before them, and thinking in a key of its own.
        yield _History([*turn, _EARLIER])
        yield _History([*turn, _EARLIER, _EARLIER], thought)
        for key in REASONING_KEYS:
            yield _History([user()], keys={key: _BESIDE})
        if self._with_images:
            seen: Message = {"role": "user", "content": [{"type": "image"}, _SEEN]}
            seen_twice: Message = {"role": "user", "content": [_SEEN, *[{"type": "image"}] * 2]}
            yield _History([seen])
            yield _History([*turn, seen_twice])
            yield _History([seen, assistant(), seen_twice, assistant(), user()])
        if self._calling is not None:
            call, _ = self._calling.turn([_EARLIER], "abut")
            called = [user(), call, _EARLIER]
            yield _History(called)
            yield _History([*called, *called[1:]])
            yield _History([*called, assistant(), user()])
            yield _History([system, *called, assistant(), *called], thought)


def _behind_inserted(tail: str, first: str, marker: str) -> int | None:
    """Return how much of `first` is after the one piece, with the marker, added in `tail`.

    None if `tail` is not `first` with one piece put in.
    """
    before, found, after = tail.partition(marker)
    if not found or len(tail) <= len(first):
        return None
    same_end = len(commonprefix([after[::-1], first[::-1]]))
    return same_end if before.startswith(first[: len(first) - same_end]) else None


def _ends_on(tail: str, first: str, marker: str, new: Sequence[Message]) -> bool:
    """Return whether `tail` is `first` up to the end of the new messages, with the text there.

    Unsloth's Gemma 4 ends the turn after that text, and continues with it where there is none.
    """
    before, found, _ = tail.partition(marker)
    before = before[: len(commonprefix([before, first]))]
    contents = [text for message in new for text in texts_of(message)]
    return bool(found) and new[-1]["role"] == "tool" and all(text in before for text in contents)
