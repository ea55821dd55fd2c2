"""System messages, written where the chat template can show them.

Invariant: each text is shown once, at the client's position or joined to its neighbour. Many
templates refuse, drop or move a system message after the first message, and some take no system
message at all, so abut renders a probe for each kind of neighbour and caches the result.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from abut.errors import TemplateError, TokenizerError
from abut.gateway.ledger.comparable import texts_and_images
from abut.gateway.ledger.refusal import Refusal
from abut.images import Image
from abut.messages import Message, blocks_of, images_of, texts_of
from abut.processor import PartsProcessor

SYSTEM_ROLES = ("system", "developer")
_BLANK_LINE = "\n\n"
# Words that no template writes itself, in the order in which the messages have them.
_BEFORE, _CALLED, _TEXT, _BEHIND, _LAST = (f"abut{number}probe" for number in range(5))
_CALL = {"id": "call00000", "type": "function", "function": {"name": "probe", "arguments": {}}}
_USER: Message = {"role": "user", "content": _BEFORE}
_TOOL: Message = {
    "role": "tool",
    "name": "probe",
    "tool_call_id": "call00000",
    "content": _CALLED,
}
_HISTORIES: Mapping[str, Sequence[Message]] = {
    "user": [_USER],
    "assistant": [_USER, {"role": "assistant", "content": _CALLED}],
    "tool": [_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, _TOOL],
}
"""Beginnings of a conversation, by the role of the last message."""
_REPLIES: Mapping[str, Sequence[Message]] = {"user": [_USER], "assistant": [], "tool": [_TOOL]}
"""The same after a turn of the policy."""
_NEXT: Mapping[str, Sequence[Message]] = {
    "": [],
    "user": [{"role": "user", "content": _BEHIND}],
    "assistant": [{"role": "assistant", "content": _BEHIND}, {"role": "user", "content": _LAST}],
}

_Written: TypeAlias = Callable[[Sequence[Message]], list[Message]]


class SystemMessages:
    """Places the system messages of requests, for one processor.

    Args:
        processor: renders messages.
        written: converts the messages of tools for the template.
    """

    def __init__(self, processor: PartsProcessor, written: _Written) -> None:
        self._processor = processor
        self._written = written
        self._roles: dict[tuple[str, str, bool], str | None] = {}

    def placed(self, messages: Sequence[Message], *, opens: bool) -> list[Message]:
        """Return messages with their system messages where the template shows them.

        Args:
            messages: already converted for the template, except for system messages.
            opens: whether they begin a conversation; otherwise they follow an answer.

        Raises:
            Refusal: the template does not show a system message there, and there is no adjacent
                user message.
        """
        # Roles, and the messages that each joins: once, at the end, for any number may be joined.
        placed: list[tuple[str, list[Message]]] = []
        ahead: list[str] = []  # belong to the beginning of the next user message
        place = 0
        if opens and (first := _run(messages, 0)):
            place = len(first)
            if self._takes_system:
                placed.append(("system", first))
            elif any(message["role"] == "user" for message in messages[place:]):
                ahead.append(_text_of(first))
            else:
                placed.append(("user", first))
        while place < len(messages):
            if run := _run(messages, place):
                place += len(run)
                before = placed[-1][0] if placed else "assistant"
                behind = messages[place]["role"] if place < len(messages) else ""
                if (role := self._role(before, behind, opens=opens)) is not None:
                    placed.append((role, run))
                elif before == "user":
                    placed[-1][1].extend(run)
                    # A template that refuses a second user message refuses both.
                    if behind == "user":
                        placed[-1][1].append(messages[place])
                        place += 1
                elif behind == "user":
                    ahead.append(_text_of(run))
                else:
                    raise self._refusal(before, behind)
                continue
            message = messages[place]
            place += 1
            joined = [message]
            if message["role"] == "user" and any(ahead):
                text = _BLANK_LINE.join(filter(None, ahead))
                joined, ahead = [{"role": "user", "content": text}, message], []
            placed.append((message["role"], joined))
        return [_joined(role, joined) for role, joined in placed]

    @cached_property
    def _takes_system(self) -> bool:
        """True if the template shows a system message at the beginning."""
        system: Message = {"role": "system", "content": _BEFORE}
        return _shows(self._processor.opening, [system, *_NEXT["user"]])

    def _role(self, before: str, behind: str, *, opens: bool) -> str | None:
        """Return the role in which the template shows a system message there; None: in no role."""
        behind = behind if behind in _NEXT else ""
        place = (before, behind, opens)
        if place not in self._roles:
            write = self._processor.opening if opens else self._processor.increment
            known = _HISTORIES if opens else _REPLIES
            # Without a history, the messages follow an answer of the policy.
            history = known.get(before, ())
            self._roles[place] = None
            for role in ("system", "user"):
                probe = [*history, {"role": role, "content": _TEXT}, *_NEXT[behind]]
                if _shows(write, probe if opens else self._written(probe)):
                    self._roles[place] = role
                    break
        return self._roles[place]

    def _refusal(self, before: str, behind: str) -> Refusal:
        name = getattr(self._processor, "template_name", type(self._processor).__name__)
        follows = f"before a {behind!r} message" if behind else "at the end"
        return Refusal(
            f"the chat template of {name} does not write a system message after a {before!r} "
            f"message and {follows}, and there is no adjacent user message to hold its text\n"
            "hint: send the text in a user message, or put the system message first",
            param="messages",
        )


def _shows(write: Callable[[Sequence[Message]], Sequence[str]], messages: list[Message]) -> bool:
    """Return whether the template writes each text of messages once, in their order."""
    try:
        prompt = "".join(write(messages))
    except (TemplateError, TokenizerError):
        return False
    texts = [text for message in messages for text in texts_of(message) if text]
    places = [prompt.find(text) for text in texts]
    return all(prompt.count(text) == 1 for text in texts) and places == sorted(places)


def _run(messages: Sequence[Message], begin: int) -> list[Message]:
    """Return the system messages that follow one another from a place on."""
    end = begin
    while end < len(messages) and messages[end]["role"] in SYSTEM_ROLES:
        end += 1
    return list(messages[begin:end])


def _joined(role: str, messages: Sequence[Message]) -> Message:
    """Return one message of a role; several are joined by blank lines."""
    if len(messages) == 1:
        return messages[0] if messages[0]["role"] == role else {**messages[0], "role": role}
    if not any(images_of(message.get("content")) for message in messages):
        return {"role": role, "content": _text_of(messages)}
    parts: list[str | Image] = []
    for message in messages:
        said = texts_and_images(message.get("content")) or [""]
        if parts:
            first = said.pop(0) if isinstance(said[0], str) else ""
            said.insert(0, f"{_BLANK_LINE}{first}")
        if parts and isinstance(before := parts[-1], str):
            parts[-1] = before + str(said.pop(0))
        parts += said
    return {"role": role, "content": blocks_of(parts)}


def _text_of(messages: Sequence[Message]) -> str:
    return _BLANK_LINE.join(text for message in messages for text in texts_of(message))
