"""Placeholders: a conversation rendered once with stand-ins for its contents, then replayed.

A *plan* is a rendered text cut at its placeholders: scaffold, and the numbers of the contents that
belong between. Filling a plan with the contents that it was made from gives the rendered text of
the real messages, if the template writes contents as they are; who makes a plan has to prove that.
"""

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from abut.errors import TemplateError
from abut.parts import Content, Part, Scaffold

Message: TypeAlias = dict[str, Any]
Plan: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Masked:
    """Messages with placeholders for all that somebody said in them.

    `contents` are the numbers of the placeholders that stand for the text of a message. The
    others stand for control tokens that are spelled elsewhere in it, say in a tool's name: the
    values of other keys are the caller's and go through as they are, but mint nothing.
    """

    messages: list[Message]
    placeholders: tuple[str, ...]
    texts: tuple[str, ...]
    message_of: tuple[int, ...]
    contents: frozenset[int]

    def shape(self) -> str | None:
        """What two conversations have in common that differ in their contents only.

        None: the messages hold something that is not JSON, so nothing can be remembered of them.
        """
        spelled = [t for i, t in enumerate(self.texts) if i not in self.contents]
        return json_or_none([self.messages, spelled])

    def with_contents(self, form: str) -> tuple[list[Message], list[str]]:
        """The messages and texts whose contents are `form`, `{}` being the placeholder."""
        texts = [
            form.replace("{}", placeholder) if i in self.contents else self.texts[i]
            for i, placeholder in enumerate(self.placeholders)
        ]
        real = dict(zip(self.placeholders, texts, strict=True))
        return [replace_strings(m, lambda s: replace_all(s, real)) for m in self.messages], texts

    def plan(self, rendered: str) -> Plan:
        """Cut at the placeholders; every content must stand there exactly once."""
        for i in sorted(self.contents):
            if (count := rendered.count(self.placeholders[i])) != 1:
                k = self.message_of[i]
                role = self.messages[k].get("role")
                how = "does not write" if count == 0 else f"writes {count} times"
                raise TemplateError(
                    f"the template {how} the content of message {k} ({role})\n"
                    "hint: use messages whose roles and content types the template knows, or pass "
                    "another template with chat_template="
                )
        if not self.placeholders:
            return (rendered,)
        number = {placeholder: i for i, placeholder in enumerate(self.placeholders)}
        pieces = re.split(f"({'|'.join(self.placeholders)})", rendered)
        return tuple(number.get(piece, piece) for piece in pieces if piece)


def fill(plan: Plan, texts: Sequence[str]) -> list[Part]:
    """The parts of a plan, its contents put in."""
    return [Content(texts[p]) if isinstance(p, int) else Scaffold(p) for p in plan]


def free_stem(*values: object) -> str:
    """An alphanumeric beginning for placeholders that occurs in none of the values."""
    haystack = repr(values)
    return next(stem for n in itertools.count() if (stem := "abut" + "Z" * n + "x") not in haystack)


def mask(messages: Sequence[Message], control: re.Pattern[str], stem: str) -> Masked:
    """Put placeholders where somebody's text stands.

    An empty content stays empty: templates branch on it, so it is a shape of its own.

    Raises:
        TemplateError: a message is not a dict with a role, or its content is not text.
    """
    placeholders: list[str] = []
    texts: list[str] = []
    message_of: list[int] = []
    contents: set[int] = set()

    def stand_in(text: str) -> str:
        placeholders.append(f"{stem}{len(placeholders)}x")
        texts.append(text)
        message_of.append(k)
        return placeholders[-1]

    def content(text: str) -> str:
        if text:
            contents.add(len(placeholders))
        return stand_in(text) if text else text

    masked: list[Message] = []
    for k, message in enumerate(messages):
        check_message(message, k)
        copy: Message = {}
        for key, value in message.items():
            if key != "content" or value is None:
                copy[key] = replace_strings(
                    value, lambda s: control.sub(lambda match: stand_in(match[0]), s)
                )
            elif isinstance(value, str):
                copy[key] = content(value)
            else:
                copy[key] = [{**block, "text": content(block["text"])} for block in value]
        masked.append(copy)
    return Masked(masked, tuple(placeholders), tuple(texts), tuple(message_of), frozenset(contents))


def check_message(message: object, k: int) -> None:
    """Raise `TemplateError` unless it is a message whose content is text."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise TemplateError(
            f"message {k} is {message!r}, not a dict with a role\n"
            'hint: write {"role": "user", "content": "..."}'
        )
    value = message.get("content")
    if value is None or isinstance(value, str):
        return
    if isinstance(value, list | tuple) and all(
        isinstance(block, dict)
        and block.get("type") == "text"
        and isinstance(block.get("text"), str)
        and set(block) == {"type", "text"}
        for block in value
    ):
        return
    raise TemplateError(
        f"message {k} ({message['role']}): content={value!r} is not text\n"
        'hint: write a string, or a list of {"type": "text", "text": "..."}'
    )


def replace_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON-like value, `change` applied to each string in it, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {replace_strings(k, change): replace_strings(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [replace_strings(v, change) for v in value]
    return value


def replace_all(text: str, real: dict[str, str]) -> str:
    """Replace every key by its value, in one pass: a value is not searched again."""
    if not real:
        return text
    return re.sub("|".join(map(re.escape, real)), lambda match: real[match[0]], text)


def json_or_none(value: object) -> str | None:
    """A key for a cache, or None for what is not JSON."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return None
