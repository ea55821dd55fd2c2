"""The proved text after an assistant turn, and how a template changes the contents in it.

Invariants: an `Increment` exists only if the template writes the same text after every history
that was tried. The turn itself is never part of it, because the model sampled the turn. A content
rule is used only if replaying it gave the text that the template wrote, for contents chosen to tell
the rules apart, or for that very content.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from abut.errors import TemplateError
from abut.messages import Message
from abut.parts import Content, Part, Scaffold
from abut.template.mask import Masked, Plan
from abut.template.rendering import Rendering
from abut.template.turn_end import TurnEnd
from abut.template.turn_layout import TurnLayout, quote_difference, roles, user

Rendered = Callable[[list[Message]], str]


@dataclass(frozen=True)
class ContentRule:
    """A change of a content that abut can replay.

    Attributes:
        name: such as `"trim"`.
        replay: makes the written text of the content; a named function, so that it pickles.
    """

    name: str
    replay: Callable[[str], str]


def _as_is(text: str) -> str:
    return text[:]  # a plain str, also of a subclass


def _json(text: str) -> str:
    # transformers' tojson; the quotes stand around the placeholder too, so they are scaffold.
    return json.dumps(text, ensure_ascii=False)[1:-1]


AS_IS = ContentRule("as is", _as_is)
RULES = (
    AS_IS,
    ContentRule("trim", str.strip),
    ContentRule("json", _json),
    ContentRule("trim left", str.lstrip),
    ContentRule("trim right", str.rstrip),
)

# Contents that templates are known to treat apart: trimmed, escaped, parsed, taken for a switch.
_HARD_CONTENTS = (
    " \n\t{} \n",
    "\n\n{}\r\n",
    "\u00a0\u2003{}\u3000\u2028\x1c",  # whitespace to Python, not to everybody
    "\u200b\x00{}\ufeff\x00",  # no whitespace to Python
    "<think>\n{}\n</think>\n\n{}",
    "\n</think>\n\n{}",
    "<tool_response>\n{}\n</tool_response>",
    '<tool_call>\n{"name": "{}", "arguments": {}}\n</tool_call>',
    "{{ {} }} {% if x %}{# \"'&<>\\",
    '{"{}": [1, true, null]}',
    "[{}]",
    "true",
    "{}\u0007 \u00e9 e\u0301 \u2028 \U0001f600 {}",
    "".join(map(chr, range(32, 127))) + "{}",
    "/no_think {} /think",
    "{}/nothink",
    "{}" + "long " * 2000,  # for templates that cut long texts
)


def find_rules(
    masked: Masked, plan: Plan, rendered: Rendered, *, spelled: Sequence[str]
) -> tuple[ContentRule, ...] | None:
    """Find the rule for each placeholder of a shape; None if no rule replays the hard contents.

    Args:
        masked: the messages of the shape.
        plan: the text that the template writes for them.
        rendered: returns the text in that place for other messages of the shape.
        spelled: the control tokens, which are hard contents as well.
    """
    hard = [*_HARD_CONTENTS, "{}".join(["", *spelled, ""])]

    def written(content: str, only: int | None = None) -> tuple[list[str], str]:
        texts = masked.with_contents(content, only=only)
        return texts, rendered(masked.with_texts(texts))

    def holds(rules: Sequence[ContentRule], texts: Sequence[str], theirs: str) -> bool:
        ours = [rule.replay(text) for rule, text in zip(rules, texts, strict=True)]
        return "".join(masked.fill(plan, ours)) == theirs

    together = [written(content) for content in hard]
    for rule in RULES:
        uniform = _for_contents(masked, dict.fromkeys(masked.contents, rule))
        if all(holds(uniform, texts, theirs) for texts, theirs in together):
            return uniform
    if len(masked.contents) < 2:
        return None
    found: dict[int, ContentRule] = {}
    for i in masked.contents:
        alone = [written(content, i) for content in hard]
        fitting = (
            rule
            for rule in RULES
            if all(holds(_for_contents(masked, {i: rule}), *pair) for pair in alone)
        )
        if (rule_of_i := next(fitting, None)) is None:
            return None
        found[i] = rule_of_i
    rules = _for_contents(masked, found)
    return rules if all(holds(rules, texts, theirs) for texts, theirs in together) else None


def replayed(rules: Sequence[ContentRule], texts: Sequence[str]) -> list[str]:
    """Return the texts as the template writes them."""
    return [rule.replay(text) for rule, text in zip(rules, texts, strict=True)]


def as_rendered(
    masked: Masked, plan: Plan, rendered: Rendered, texts: Sequence[str]
) -> list[str] | None:
    """Return `texts` as the template writes them, each compared with its real render.

    None if no rule gives the text that the template writes.
    """
    texts = list(texts)
    real = rendered(masked.with_texts(texts))
    if "".join(masked.fill(plan, texts)) == real:
        return texts
    for i in sorted(masked.contents):
        alone = masked.with_contents("{}")
        alone[i] = texts[i]
        theirs = rendered(masked.with_texts(alone))
        for rule in RULES:
            alone[i] = rule.replay(texts[i])
            if "".join(masked.fill(plan, alone)) == theirs:
                texts[i] = alone[i]
                break
        else:
            return None
    return texts if "".join(masked.fill(plan, texts)) == real else None


def changed_content(
    messages: Sequence[Message], masked: Masked, plan: Plan, rendered: Rendered
) -> TemplateError:
    """Return the error that names the message whose content the template changes."""
    for k in range(len(messages)):
        texts = [
            masked.texts[i] if masked.message_of[i] == k else placeholder
            for i, placeholder in enumerate(masked.placeholders)
        ]
        if as_rendered(masked, plan, rendered, texts) is None:
            break
    else:  # only together do they change something
        k, texts = -1, list(masked.texts)
    ours, theirs = "".join(masked.fill(plan, texts)), rendered(masked.with_texts(texts))
    what = "one of the messages" if k < 0 else f"message {k} ({messages[k]['role']})"
    return TemplateError(
        f"the template changes the content of {what}: {quote_difference(ours, theirs)}\n"
        "hint: pass the content as the template writes it (for example, an earlier assistant "
        "message without its thinking)"
    )


def _for_contents(masked: Masked, rules: dict[int, ContentRule]) -> tuple[ContentRule, ...]:
    return tuple(rules.get(i, AS_IS) for i in range(len(masked.placeholders)))


@dataclass(frozen=True)
class Increment:
    """The proved increment of one shape.

    Attributes:
        layout: the assistant turn that it was found after.
        end: the end of that turn; the plan begins after it.
        plan: the text that the template writes there.
        rules: how the template changes each content; None if each content has to be compared.
        moves: what the template moves, and to where: the system message into the increment, or the
            text next to a tool call there or after the call. The increment leaves it out, because a
            trajectory has it where it was first.
    """

    layout: TurnLayout
    end: TurnEnd
    plan: Plan
    rules: tuple[ContentRule, ...] | None
    moves: tuple[str, ...]

    def parts(
        self, rendering: Rendering, messages: Sequence[Message], masked: Masked
    ) -> list[Part]:
        """Return the increment of `messages`, from which `masked` was made.

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
                f"the template changes the content of a message of {roles(messages)}, so abut "
                "cannot append it exactly: "
                f"{quote_difference(ours, self.written(rendering, messages))}\n"
                "hint: pass the content as the template writes it"
            )
        return masked.fill(self.plan, texts)

    def with_contents(self, contents: Sequence[str]) -> list[Part]:
        """Return the increment of messages that differ in `contents` alone, none of them blank.

        Valid only if there are `rules`.
        """
        rules = self.rules or ()
        return [
            Scaffold(piece)
            if isinstance(piece, str)
            else Content(rules[piece].replay(contents[piece]))
            for piece in self.plan
        ]

    def with_names(self, masked: Masked) -> "Increment":
        """Return the increment of the same messages, with the names in `masked` written out."""
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
        """Return the text that the template writes for `new` in the place of the plan."""
        tail = rendering.after_turn([user()], self.layout, new)
        return rendering.after_token(tail, self.end.count)
