"""Reports on a chat template: which messages can follow a turn, and what it changes in the past.

Changes of the past are reported, but not refused, because a trajectory is append-only.
"""

from dataclasses import dataclass
from typing import Literal

from abut.messages import Message
from abut.template.increment import Increment
from abut.template.mask import Masked
from abut.template.rendering import Rendering
from abut.template.thinking import CLOSE, OPEN, render_or_none
from abut.template.turn_layout import REASONING_KEYS, assistant, quote_difference, user


def _tool(name: str, call_id: str) -> Message:
    return {"role": "tool", "name": name, "tool_call_id": call_id, "content": "abutResult"}


NEXT_MESSAGES: dict[str, list[Message]] = {
    "user": [user()],
    "tool": [_tool("abutSearch", "abutCall0")],
    "several tools": [_tool("abutSearch", "abutCall0"), _tool("abutClock", "abutCall1")],
    "tool, user": [_tool("abutSearch", "abutCall0"), user()],
}
"""The kinds of messages that `ChatTemplateProcessor.verdicts` judges."""


@dataclass(frozen=True)
class NextVerdict:
    """The verdict on one kind of messages that may follow a turn.

    Attributes:
        kind: of the messages that come next, a key of `NEXT_MESSAGES`.
        appendable: True if the template provably writes the same text for them after every history.
        because: why they are not appendable, in one line; `""` if they are.
        stop: the control token that ends the turn before them; `""` if not appendable.
        scaffold: the text after that token, with `{}` for each content.
        contents: how the template changes each content: the name of a `ContentRule`, or
            `"compared"` if each content is compared with the real render.
        notes: other effects of the template, one sentence each.
    """

    kind: str
    appendable: bool
    because: str = ""
    stop: str = ""
    scaffold: str = ""
    contents: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def proved(cls, kind: str, increment: Increment, masked: Masked) -> "NextVerdict":
        """Return the verdict on messages with an increment; `masked` is made of the messages."""
        order = [p for p in increment.plan if isinstance(p, int) and p in masked.contents]
        rules = increment.rules
        return cls(
            kind=kind,
            appendable=True,
            stop=increment.end.stop,
            scaffold="".join(
                p if isinstance(p, str) else "{}" if p in masked.contents else masked.texts[p]
                for p in increment.plan
            ),
            contents=tuple("compared" if rules is None else rules[i].name for i in order),
            notes=tuple(
                f"the template moves {what}; a trajectory keeps it where it was first written"
                for what in increment.moves
            ),
        )


@dataclass(frozen=True)
class TemplateReport:
    """The findings about a chat template.

    Attributes:
        separator: the text between a closed turn and the next header.
        generation_prompt: the text that starts the model's turn.
        end_token: the control token that ends a turn.
        stop_tokens: the tokens that end a turn, in the order of `stop_token_ids`.
        history_thinking: `"stripped"` if the template removes thinking from earlier turns, the
            answer's or the generation prompt's own; else `"kept"`. A trajectory always keeps it.
        notes: changes that the template would make in the past, and messages that it does not
            accept; one sentence each.
        image_roles: the roles whose messages may have images, with an `ImageProcessor`; `notes` say
            why other roles may not.
    """

    separator: str
    generation_prompt: str
    end_token: str
    stop_tokens: tuple[str, ...]
    history_thinking: Literal["kept", "stripped"]
    notes: tuple[str, ...]
    image_roles: tuple[str, ...] = ()


def probe(
    render: Rendering,
    increment: Increment,
    *,
    generation_prompt: str,
    stop_tokens: tuple[str, ...],
    no_tools: str | None,
    opened: bool,
) -> TemplateReport:
    """Render a few conversations and report what the template would change in their past.

    Args:
        render: of the template.
        increment: that of a user message.
        generation_prompt: the text that starts the model's turn.
        stop_tokens: the tokens that end a turn.
        no_tools: why tool messages are refused, `""` if the template does not write calls; None if
            they are not refused.
        opened: True if the generation prompt begins the thinking.
    """
    prompt = render([user()])
    end = increment.end
    notes: list[str] = []

    # What the prompt was, against what it has become one turn later.
    thinking = f"{OPEN}\nabutReasoning\n{CLOSE}\n\n"
    past = render([user(), assistant((thinking if opened else "") + "abutAnswer"), user()])
    head = past.partition("abutReasoning" if "abutReasoning" in past else "abutAnswer")[0]
    dropped = prompt.removeprefix(head) if prompt.startswith(head) else ""
    if dropped:
        notes.append(
            f"the template removes the generation prompt's own {dropped!r} from earlier turns"
        )
    elif head.startswith(prompt) and head != prompt:
        notes.append(
            f"before an answer the template writes {head.removeprefix(prompt)!r}, which is not "
            "in the generation prompt, so the model has to sample it"
        )
    elif head != prompt:
        notes.append(
            f"the template changes the prompt once it is answered: {quote_difference(prompt, head)}"
        )
    if end.stop != end.token:
        notes.append(
            f"in earlier turns the template writes {end.token!r} for the ending {end.stop!r}"
        )

    before_thinking = prompt.removesuffix(generation_prompt) + generation_prompt.partition(OPEN)[0]
    sampled = before_thinking + thinking + "abutAnswer"
    kept = {"user": True}
    for role in ("user", "tool"):
        follow: Message = {"role": role, "content": "abutEarlier"}
        after = render_or_none(render, [user(), assistant(thinking + "abutAnswer"), follow])
        if after is None:
            continue
        kept[role] = "abutReasoning" in after
        if kept[role] and head == prompt and not after.startswith(sampled):
            notes.append(
                f"the template changes the thinking before a {role} message: "
                f"{quote_difference(sampled, after)}"
            )
    stripped = not kept["user"] or _strips_reasoning(render)
    if stripped:
        tool = kept.get("tool") and not kept["user"]
        but = " (but keeps it when a tool message follows)" if tool else ""
        notes.append(f"the template removes the thinking from earlier turns{but}")

    system = [{"role": "system", "content": "abutEarlier"}, user()]
    if "abutEarlier" not in (render_or_none(render, system) or ""):
        notes.append("the template does not accept system messages")
    if no_tools is not None:
        notes.append(
            f"tool messages cannot be appended: {no_tools}"
            if no_tools
            else "the template does not accept tool messages"
        )
    if increment.rules is None:
        notes.append(
            "the template changes the content of some user messages: abut compares each one with "
            "the real render and refuses it if the two differ"
        )
    return TemplateReport(
        separator=_separator(render, increment),
        generation_prompt=generation_prompt,
        end_token=end.token,
        stop_tokens=stop_tokens,
        history_thinking="stripped" if stripped or OPEN in dropped else "kept",
        notes=tuple(notes),
    )


def _strips_reasoning(render: Rendering) -> bool:
    """Return whether a reasoning key is written in a last turn, and not in an earlier one."""
    for key in REASONING_KEYS:
        thought = {**assistant(), key: "abutReasoning"}
        last = render_or_none(render, [user(), thought], add_generation_prompt=False)
        past = render_or_none(render, [user(), thought, user()])
        if last and past and "abutReasoning" in last and "abutReasoning" not in past:
            return True
    return False


def _separator(render: Rendering, increment: Increment) -> str:
    """Return the text that always follows a turn; some templates write an EOS after the last."""
    last = render([user(), assistant("abutAnswer")], add_generation_prompt=False)
    rest = last.partition("abutAnswer")[2].removeprefix(increment.end.text)
    if rest and isinstance(increment.plan[0], str) and increment.plan[0].startswith(rest):
        return rest
    return rest[: len(rest) - len(rest.lstrip())]
