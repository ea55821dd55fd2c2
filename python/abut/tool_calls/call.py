"""A call, and what is wrong where there is none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class ToolCall:
    """One call, well formed."""

    name: str
    arguments: dict[str, Any]
    """JSON values. Where a format writes text and numbers alike, they are text unless a schema says
    otherwise."""
    id: str | None = None
    """Only where the model wrote one (Mistral, Solar, Kimi K2)."""


class Wrong(Exception):
    """A call is not what its format asks for: the place, from 0 in the text, and the reason.

    Attributes:
        at: the place.
        end: where what is wrong ends, if that is known.
    """

    def __init__(self, at: int, what: str, *, end: int | None = None) -> None:
        super().__init__(f"character {at}: {what}")
        self.at = at
        self.end = end


Found: TypeAlias = tuple[int, int, Sequence[ToolCall | Wrong]]
"""First character, the one behind the last, and what stands there: nothing for a mere header."""
