"""What an actor answers: both ends of the wire know these, and nothing else of each other."""

from typing import NamedTuple

from abut.envs.env import Reply


class Said(NamedTuple):
    """What an environment said, and how it is then."""

    reply: Reply
    alive: bool
    reward: float | None
    """NaN as it is, so that it is noticed where the training runs."""
    scores_episode: bool
    """Whether it wants the whole episode at its end."""


class Failed(NamedTuple):
    """What an environment raised."""

    text: str
    trace: str
    is_row: bool = False
    """Whether the dataset's row is what is wrong; then no other attempt can help."""
    is_exhausted: bool = False
    """Whether the process has run out of something, which its other environments need too."""
