"""The form of messages: all that they say but for their contents.

What was proved of messages holds for all of the same form, so the usual turn, a reply like those
before it, is neither masked nor looked through again.
"""

from collections.abc import Sequence
from typing import TypeAlias

from abut.messages import Message

Form: TypeAlias = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

_TEXT = frozenset({str})


def form_of(messages: Sequence[Message]) -> Form | None:
    """The form; None where messages hold more than text.

    A `tool_call_id` is new with every call, and a content that is only whitespace is a case of its
    own for many templates: such messages have none either.
    """
    form = []
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
        form.append((keys, tuple(values)))
    return tuple(form)
