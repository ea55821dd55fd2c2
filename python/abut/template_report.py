"""What a chat template does to the past, found by rendering: reported, never refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from abut.errors import TemplateError
from abut.placeholder import Message
from abut.thinking import CLOSE, OPEN


@dataclass(frozen=True)
class TemplateReport:
    """What was found out about a chat template.

    Attributes:
        separator: what the template writes between a closed turn and the next header.
        generation_prompt: what asks the model for its turn.
        close: the control token that closes a turn.
        stop_tokens: the tokens that end a turn, in the order of `stop_token_ids`.
        history_thinking: `"stripped"` where the template drops thinking from earlier turns, be it
            the answer's or the generation prompt's own. A trajectory keeps it all the same.
        notes: what the template would have changed in the past, and what it does not take; one
            sentence each.
    """

    separator: str
    generation_prompt: str
    close: str
    stop_tokens: tuple[str, ...]
    history_thinking: Literal["kept", "stripped"]
    notes: tuple[str, ...]


class Render(Protocol):
    """Renders messages to text, or raises `TemplateError`."""

    def __call__(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The text of the whole conversation."""
        ...


def probe(
    render: Render,
    *,
    close: str,
    separator: str,
    stop_tokens: tuple[str, ...],
    verbatim: bool,
) -> TemplateReport:
    """Render a few conversations and say what the template would have changed in their past."""
    prompt = render([user()])
    closed = render([user()], add_generation_prompt=False)
    generation_prompt = (
        prompt.removeprefix(closed)
        if prompt.startswith(closed)
        else prompt.rpartition(close + separator)[2]
    )
    notes: list[str] = []

    # What the prompt was, against what it has become one turn later.
    thinking = f"{OPEN}\nabutReasoning\n{CLOSE}\n\n"
    opened = generation_prompt.rstrip().endswith(OPEN)
    past = render([user(), assistant((thinking if opened else "") + "abutAnswer"), user()])
    head = past.partition("abutReasoning" if "abutReasoning" in past else "abutAnswer")[0]
    dropped = prompt.removeprefix(head) if prompt.startswith(head) else ""
    if dropped:
        notes.append(f"the generation prompt's own {dropped!r} is stripped from earlier turns")
    elif head != prompt:
        notes.append(f"the prompt is written otherwise once answered: {both(prompt, head)}")

    before_thinking = prompt.removesuffix(generation_prompt) + generation_prompt.partition(OPEN)[0]
    sampled = before_thinking + thinking + "abutAnswer"
    kept = {"user": True}
    for role in ("user", "tool"):
        follow: Message = {"role": role, "content": "abutEarlier"}
        try:
            past = render([user(), assistant(thinking + "abutAnswer"), follow])
        except TemplateError:
            continue
        kept[role] = "abutReasoning" in past
        if kept[role] and not past.startswith(sampled):
            notes.append(
                f"thinking before a {role} message is written otherwise: {both(sampled, past)}"
            )
    if not kept["user"]:
        but = " (kept where a tool message follows)" if kept.get("tool") else ""
        notes.append(f"the thinking of an answer is stripped from earlier turns{but}")

    for role, history in (
        ("system", [{"role": "system", "content": "abutEarlier"}, user()]),
        ("tool", [user(), assistant(), {"role": "tool", "content": "abutEarlier"}]),
    ):
        try:
            written = "abutEarlier" in render(history)
        except TemplateError:
            written = False
        if not written:
            notes.append(f"the template takes no {role} messages")
    if not verbatim:
        notes.append(
            "the template changes some user contents (it trims, escapes or parses them): each one "
            "is compared with the real render and refused where it differs"
        )
    return TemplateReport(
        separator=separator,
        generation_prompt=generation_prompt,
        close=close,
        stop_tokens=stop_tokens,
        history_thinking="stripped" if not kept["user"] or OPEN in dropped else "kept",
        notes=tuple(notes),
    )


def user(content: str = "abutUser") -> Message:
    """A user message for a probe."""
    return {"role": "user", "content": content}


def assistant(content: str = "abutAssistant") -> Message:
    """An assistant message for a probe."""
    return {"role": "assistant", "content": content}


def roles(messages: Sequence[Message]) -> str:
    """Such as `[system, user]`."""
    return "[" + ", ".join(str(message.get("role")) for message in messages) + "]"


def both(ours: str, theirs: str) -> str:
    """Two texts around the first place where they differ."""
    differing = (i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y)
    start = max(0, next(differing, min(len(ours), len(theirs))) - 40)
    dots = "..." if start else ""
    return f"{dots}{ours[start : start + 120]!r} against {dots}{theirs[start : start + 120]!r}"
