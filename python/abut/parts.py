"""Typed pieces of text: only scaffold may become a control token.

A part *is* its text (a `str`); its class says who wrote it. Joining parts with `+` or `"".join`
gives plain `str`, which has forgotten that, so keep them in a list.
"""

from typing import TypeAlias


class Scaffold(str):
    """Text that the chat template writes: role headers, separators, the generation prompt."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Scaffold({super().__repr__()})"


class Content(str):
    """Text that somebody said: a user, a tool, an environment, an earlier assistant.

    Whatever it spells, it never becomes a control token.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Content({super().__repr__()})"


Part: TypeAlias = Scaffold | Content

PROVENANCE = ("prompt", "env", "scaffold", "sampled", "close")
"""The names of the codes in `Trajectory.provenance`: `PROVENANCE[code]`."""
