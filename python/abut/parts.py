"""Typed pieces of text: only scaffold may become a control token.

A part *is* its text (a `str`); its class says who wrote it. Joining parts with `+` or `"".join`
returns a plain `str`, without that information, so keep parts in a list.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias


class Scaffold(str):
    """Text that the chat template writes: role headers, separators, the generation prompt."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Scaffold({super().__repr__()})"


class Content(str):
    """Text of a user, a tool, an environment or an earlier assistant message.

    It never becomes a control token, even if it spells one.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Content({super().__repr__()})"


class Sampled(str):
    """Text of the policy that spells control tokens with other tokens.

    The value is the text itself. `veiled` is the text for parsers, which has a control token only
    where it was sampled: in the others, the first character is replaced by one that is not in the
    text. Positions are the same in both.
    """

    __slots__ = ("_characters", "veiled")

    veiled: str
    _characters: Mapping[str, str]

    def __new__(cls, veiled: str, characters: Mapping[str, str]) -> "Sampled":
        """The text of `veiled`.

        Args:
            veiled: see above.
            characters: for each that hides another one, that one.
        """
        shown = {ord(veil): character for veil, character in characters.items()}
        self = super().__new__(cls, veiled.translate(shown))
        self.veiled = veiled
        self._characters = dict(characters)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copies."""
        return Sampled, (self.veiled, self._characters)

    def part(self, veiled: str) -> str:
        """Return a part of the veiled text: a `Sampled` if it still hides something."""
        hides = any(character in veiled for character in self._characters)
        return Sampled(veiled, self._characters) if hides else veiled

    def unveiled(self, value: Any) -> Any:
        """A JSON value that was parsed from the veiled text, with the text's own characters."""
        if isinstance(value, str):
            return str(self.part(value))
        if isinstance(value, dict):
            return {self.unveiled(key): self.unveiled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.unveiled(item) for item in value]
        return value


def veiled(text: str) -> str:
    """The text for a parser."""
    return text.veiled if isinstance(text, Sampled) else text


Part: TypeAlias = Scaffold | Content

PROVENANCE = ("prompt", "env", "scaffold", "sampled", "close")
"""The names of the codes in `Trajectory.provenance`: `PROVENANCE[code]`."""
