"""What a template writes after an assistant turn, once proved: filled with any contents.

Invariant: an `Increment` exists only where the template writes the same text behind every history
that it was tried on. The turn itself is never part of it: the model sampled that.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from abut.errors import TemplateError
from abut.messages import Message
from abut.parts import Content, Part, Scaffold
from abut.template.content_rule import ContentRule, as_rendered, replayed
from abut.template.mask import Masked, Plan
from abut.template.probe import TurnForm, user
from abut.template.quote import quote_difference, roles
from abut.template.rendering import Rendering
from abut.template.turn_end import TurnEnd


@dataclass(frozen=True)
class Increment:
    """The proved increment of one shape.

    Attributes:
        form: the assistant turn that it was found after.
        end: how that turn ends; the plan begins after it.
        plan: what the template writes there.
        rules: what it does to each content, None where that has to be seen each time.
        moves: what the template moves, and to where: the system message into the increment, or the
            text beside a tool call there or behind the call. The increment leaves it out, because a
            trajectory has it where it was first.
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
        texts = as_rendered(
            masked, self.plan, lambda new: self.written(rendering, new), masked.texts
        )
        if texts is None:
            ours = "".join(masked.fill(self.plan, masked.texts))
            raise TemplateError(
                f"the template changes a content of {roles(messages)}, so it cannot be "
                f"replayed: {quote_difference(ours, self.written(rendering, messages))}\n"
                "hint: give the messages the form that the template writes"
            )
        return masked.fill(self.plan, texts)

    def with_contents(self, contents: Sequence[str]) -> list[Part]:
        """The increment of messages of which `contents`, none of them blank, are all that varies.

        Only where there are `rules`.
        """
        texts = replayed(self.rules or (), contents)
        return [
            Scaffold(piece) if isinstance(piece, str) else Content(texts[piece])
            for piece in self.plan
        ]

    def with_names(self, masked: Masked) -> "Increment":
        """That of the same messages where no placeholder stands for the names in `masked`."""
        kept = [i for i in range(len(masked.texts)) if i not in masked.names]
        number = {i: k for k, i in enumerate(kept)}
        pieces = [p if isinstance(p, str) else number.get(p, masked.texts[p]) for p in self.plan]
        plan = [
            piece
            for is_text, run in itertools.groupby(pieces, lambda piece: isinstance(piece, str))
            for piece in (["".join(map(str, run))] if is_text else run)
        ]
        rules = None if self.rules is None else tuple(self.rules[i] for i in kept)
        return replace(self, plan=tuple(plan), rules=rules)

    def written(self, rendering: Rendering, new: Sequence[Message]) -> str:
        """What the template writes for `new` in the place of the plan."""
        tail = rendering.after_turn([user()], self.form, new)
        return rendering.after_token(tail, self.end.count)
