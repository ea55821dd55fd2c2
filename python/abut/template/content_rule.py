"""What a template does to the text of a message: writes it as it is, trims it, quotes it as JSON.

Invariant: a rule is used for a content only where replaying it gave what the template wrote, for
contents chosen to tell the rules apart, or for that very content.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from abut.errors import TemplateError
from abut.messages import Message
from abut.template.mask import Masked, Plan
from abut.template.quote import quote_difference

Rendered = Callable[[list[Message]], str]


@dataclass(frozen=True)
class ContentRule:
    """A change of a content that can be replayed.

    Attributes:
        name: such as `"trim"`.
        replay: from the content to what the template writes; a named function, which pickles.
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
    "{}" + "long " * 2000,
)


def find_rules(
    masked: Masked, plan: Plan, rendered: Rendered, *, spelled: Sequence[str]
) -> tuple[ContentRule, ...] | None:
    """The rule for each placeholder of a shape; None where no rule replays the hard contents.

    Args:
        masked: the messages of the shape.
        plan: what the template writes for them.
        rendered: what it writes in that place for other messages of the shape.
        spelled: the control tokens, which are hard contents too.
    """
    hard = [*_HARD_CONTENTS, "{}".join(["", *spelled, ""])]

    def written(form: str, only: int | None = None) -> tuple[list[str], str]:
        texts = masked.with_contents(form, only=only)
        return texts, rendered(masked.with_texts(texts))

    def holds(rules: Sequence[ContentRule], texts: Sequence[str], theirs: str) -> bool:
        ours = [rule.replay(text) for rule, text in zip(rules, texts, strict=True)]
        return "".join(masked.fill(plan, ours)) == theirs

    together = [written(form) for form in hard]
    for rule in RULES:
        uniform = _for_contents(masked, dict.fromkeys(masked.contents, rule))
        if all(holds(uniform, texts, theirs) for texts, theirs in together):
            return uniform
    if len(masked.contents) < 2:
        return None
    found: dict[int, ContentRule] = {}
    for i in masked.contents:
        alone = [written(form, i) for form in hard]
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
    """The texts as the template writes them."""
    return [rule.replay(text) for rule, text in zip(rules, texts, strict=True)]


def as_rendered(
    masked: Masked, plan: Plan, rendered: Rendered, texts: Sequence[str]
) -> list[str] | None:
    """`texts` as the template writes them, each compared with its real render.

    None: no rule gives what the template writes.
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
    what = "some message" if k < 0 else f"message {k} ({messages[k]['role']})"
    return TemplateError(
        f"the template changes the content of {what}: {quote_difference(ours, theirs)}\n"
        "hint: give the message the form that the template writes (an earlier assistant "
        "message without its thinking)"
    )


def _for_contents(masked: Masked, rules: dict[int, ContentRule]) -> tuple[ContentRule, ...]:
    return tuple(rules.get(i, AS_IS) for i in range(len(masked.placeholders)))
