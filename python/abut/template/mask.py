"""Placeholders: a conversation rendered once with stand-ins for its contents, then replayed.

A *plan* is a rendered text cut at its placeholders: scaffold, and the numbers of the contents that
belong between. Filling a plan with its own contents gives the rendered text of the real messages if
the template writes contents unchanged, which the code that creates a plan must prove.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from abut.errors import TemplateError
from abut.images import Image
from abut.messages import Message, images_of, is_block, with_images
from abut.parts import Content, Part, Scaffold
from abut.template.turn_layout import WITH_TEMPLATE

Plan: TypeAlias = tuple[str | int, ...]

_IMAGE = {"type": "image"}  # all that a template gets of an image


@dataclass(frozen=True)
class Masked:
    """Messages with placeholders instead of all texts.

    `contents` are the numbers of the placeholders for the text of a message, `ids` those for a
    `tool_call_id`, and `names` those for the name of a tool. Other placeholders replace control
    tokens in other keys, such as a tool's name, so that these cannot become tokens; the rest of
    such values does not change.

    `images` are those of the messages, in order: the template writes one placeholder for each.
    """

    messages: list[Message]
    placeholders: tuple[str, ...]
    texts: tuple[str, ...]
    message_of: tuple[int, ...]
    contents: frozenset[int]
    ids: frozenset[int]
    names: frozenset[int] = frozenset()
    images: tuple[Image, ...] = ()

    def shape(self) -> str | None:
        """Return a key that conversations share if they differ in contents, ids and names alone.

        None if the messages hold something that is not JSON, so that nothing can be remembered.
        """
        varying = self.contents | self.ids | self.names
        return json_or_none(
            [self.messages, [t for i, t in enumerate(self.texts) if i not in varying]]
        )

    def with_contents(self, content: str, *, only: int | None = None) -> list[str]:
        """Return the texts with `content` for every content, or for the one numbered `only`.

        `{}` in it stands for the placeholder. The other contents stay placeholders.
        """
        return [
            self.texts[i]
            if i not in self.contents
            else content.replace("{}", placeholder)
            if only in (None, i)
            else placeholder
            for i, placeholder in enumerate(self.placeholders)
        ]

    def with_texts(self, texts: Sequence[str]) -> list[Message]:
        """Return the messages with `texts` in the place of the placeholders."""
        real = dict(zip(self.placeholders, texts, strict=True))
        return [replace_strings(m, lambda s: replace_all(s, real)) for m in self.messages]

    def fill(self, plan: Plan, texts: Sequence[str]) -> list[Part]:
        """Return the parts of a plan with `texts` put in; an empty text leaves no part."""
        labels = self.ids | self.names
        return [
            Scaffold(p) if isinstance(p, str) else (Scaffold if p in labels else Content)(texts[p])
            for p in plan
            if isinstance(p, str) or texts[p]
        ]

    def plan(self, rendered: str) -> Plan:
        """Cut a rendered text at the placeholders; it must hold every content exactly once."""
        if not self.placeholders:
            return (rendered,)
        # One search for all: a search for each takes n times as long for n messages.
        stem = self.placeholders[0].rstrip("y")[: -len("0x")]
        pieces: list[str | int] = []
        at = 0
        for found in re.finditer(rf"{stem}(\d+)x", rendered):
            i, start = int(found[1]), found.start()
            if i < len(self.placeholders) and rendered.startswith(self.placeholders[i], start):
                pieces += [rendered[at:start], i]
                at = start + len(self.placeholders[i])
        counts = Counter(piece for piece in pieces if isinstance(piece, int))
        for i in sorted(self.contents):
            if (count := counts[i]) != 1:
                k = self.message_of[i]
                raise TemplateError(not_written(k, self.messages[k], count))
        return tuple(piece for piece in [*pieces, rendered[at:]] if piece != "")


def not_written(k: int, message: Message, count: int = 0) -> str:
    """Return the error text for a content that is not in the rendered text once."""
    how = "does not write" if count == 0 else f"writes {count} times"
    return (
        f"the template {how} the content of message {k} ({message['role']})\n"
        "hint: use roles and content types that the template supports, or pass another "
        f"template: {WITH_TEMPLATE}"
    )


def free_stem(*values: object) -> str:
    """Return an alphanumeric beginning for placeholders that occurs in none of the values."""
    # Lengthened until it is free, because a text may quote abut's own placeholders.
    haystack = repr(values)
    return next(stem for n in itertools.count() if (stem := "abut" + "Z" * n + "x") not in haystack)


def mask(
    messages: Sequence[Message], control: re.Pattern[str], stem: str, *, names: bool = False
) -> Masked:
    """Put placeholders in the place of every text that somebody said.

    An empty content stays empty: templates branch on it, so it is a shape of its own. A
    `tool_call_id` is new with every call and would make every message a shape of its own, so it
    gets a placeholder of its length, except next to the `tool_calls` that it refers to. With
    `names` the name of a tool gets one too, the same one wherever that name is.

    Raises:
        TemplateError: a message is not a dict with a role, or its content is not text and images.
        ImageError: an image cannot be read.
    """
    placeholders: list[str] = []
    images: list[Image] = []
    texts: list[str] = []
    message_of: list[int] = []
    contents: set[int] = set()
    ids: set[int] = set()
    named: set[int] = set()
    called = any(isinstance(m, dict) and m.get("tool_calls") for m in messages)

    def stand_in(text: str) -> str:
        placeholders.append(f"{stem}{len(placeholders)}x")
        texts.append(text)
        message_of.append(k)
        return placeholders[-1]

    def label(text: str, kind: set[int], length: int) -> str:
        if (known := next((i for i in kind if texts[i] == text), None)) is not None:
            return placeholders[known]
        kind.add(len(placeholders))
        stand_in(text)
        placeholders[-1] = placeholders[-1].ljust(length, "y")  # Mistral counts characters of ids
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
            if key == "tool_call_id" and not called and _is_call_id(value, control, stem):
                copy[key] = label(value, ids, len(value))
            elif key == "name" and names and not called and _is_name(message, control):
                copy[key] = label(value, named, 0)
            elif key != "content" or value is None:
                copy[key] = replace_strings(
                    value, lambda s: control.sub(lambda match: stand_in(match[0]), s)
                )
            elif isinstance(value, str):
                copy[key] = content(value)
            else:
                images += images_of(blocks := with_images(value))
                copy[key] = [
                    {**block, "text": content(block["text"])} if "text" in block else _IMAGE
                    for block in blocks
                ]
        masked.append(copy)
    return Masked(
        masked,
        tuple(placeholders),
        tuple(texts),
        tuple(message_of),
        frozenset(contents),
        frozenset(ids),
        frozenset(named),
        tuple(images),
    )


def _is_call_id(value: object, control: re.Pattern[str], stem: str) -> bool:
    """Return whether a placeholder of the same length can stand for the id in every template."""
    return (
        isinstance(value, str)
        and len(value) > len(stem) + 2
        and re.fullmatch(r"[A-Za-z0-9_-]+", value) is not None
        and control.search(value) is None
    )


def _is_name(message: Message, control: re.Pattern[str]) -> bool:
    """Return whether the message names a tool with a name that every template writes as it is."""
    name = message.get("name")
    return (
        message["role"] == "tool"
        and isinstance(name, str)
        and re.fullmatch(r"[A-Za-z0-9_.-]+", name) is not None
        and control.search(name) is None
    )


def check_message(message: object, k: int) -> None:
    """Raise `TemplateError` unless it is a message whose content is text and images.

    An assistant message that calls tools may have none.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise TemplateError(
            f"message {k} is {message!r}, not a dict with a role\n"
            'hint: write {"role": "user", "content": "..."}'
        )
    value = message.get("content")
    if isinstance(value, str) or (value is None and message.get("tool_calls")):
        return
    if isinstance(value, list | tuple) and all(map(is_block, value)):
        return
    raise TemplateError(
        f"message {k} ({message['role']}): content={value!r} is not text\n"
        'hint: write a string, or a list of {"type": "text", "text": "..."}'
    )


def replace_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Copy a JSON-like value, with `change` applied to each string in it, keys included."""
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
    """Return a key for a cache; None if the value is not JSON."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return None


Layout: TypeAlias = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

_TEXT = frozenset({str})


def layout_of(messages: Sequence[Message]) -> Layout | None:
    """Return all that messages say but for their contents; None if they hold more than text.

    The proof for one conversation holds for all of the same layout, so the usual turn, a reply like
    those before it, is neither masked nor looked through again. A message with a `tool_call_id`
    has no layout, because the id is new with every call. Nor has a content of whitespace alone,
    because many templates branch on it.
    """
    layout = []
    for message in messages:
        if type(message) is not dict or "tool_call_id" in message:
            return None
        content = message.get("content")
        if type(content) is not str or not content or content.isspace():
            return None
        if not _TEXT.issuperset(map(type, message.values())):
            return None
        keys, values = tuple(message), list(message.values())
        # The content keeps its place: a template that writes whole messages writes it there.
        values[keys.index("content")] = ""
        layout.append((keys, tuple(values)))
    return tuple(layout)
