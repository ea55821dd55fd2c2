"""How errors write messages and texts."""

from collections.abc import Sequence
from os.path import commonprefix

from abut.messages import Message

WITH_TEMPLATE = "processor=ChatTemplateProcessor(tokenizer, chat_template=…)"
"""How hints say to give another template; `make_rollout_func` itself has no `chat_template`."""


def roles(messages: Sequence[Message]) -> str:
    """Such as `[system, user]`."""
    return "[" + ", ".join(str(message.get("role")) for message in messages) + "]"


def quote_difference(ours: str, theirs: str) -> str:
    """Two texts that should be equal, as `'…' against '…'`.

    Of each it shows 120 characters, from 40 before the first that differs.
    """
    start = max(0, len(commonprefix([ours, theirs])) - 40)
    dots = "..." if start else ""
    return f"{dots}{ours[start : start + 120]!r} against {dots}{theirs[start : start + 120]!r}"
