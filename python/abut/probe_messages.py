"""The messages of probes, what their texts share, and how errors write messages and texts."""

from collections.abc import Sequence

from abut.messages import Message


def user(content: str = "abutUser") -> Message:
    """A user message for a probe."""
    return {"role": "user", "content": content}


def assistant(content: str = "abutAssistant") -> Message:
    """An assistant message for a probe."""
    return {"role": "assistant", "content": content}


def roles(messages: Sequence[Message]) -> str:
    """Such as `[system, user]`."""
    return "[" + ", ".join(str(message.get("role")) for message in messages) + "]"


def common_prefix(a: str, b: str) -> str:
    """The longest text that both begin with."""
    differing = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return a[: next(differing, min(len(a), len(b)))]


def both(ours: str, theirs: str) -> str:
    """Two texts around the first place where they differ."""
    start = max(0, len(common_prefix(ours, theirs)) - 40)
    dots = "..." if start else ""
    return f"{dots}{ours[start : start + 120]!r} against {dots}{theirs[start : start + 120]!r}"
