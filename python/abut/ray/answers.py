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
    is_over: bool = False
    """Whether it has ended, and nothing of it is there any more to close."""


class Finished(NamedTuple):
    """What an agent returned."""

    pickled: bytes
    """An `AgentResult`, whose reward is NaN where the agent's was. Pickled by us: what Ray cannot
    pickle or read would look like an actor that is broken."""


class Failed(NamedTuple):
    """What an environment or an agent raised."""

    text: str
    trace: str
    is_row: bool = False
    """Whether the dataset's row is what is wrong; then no other attempt can help."""
    is_exhausted: bool = False
    """Whether the process has run out of something, which the others in it need too."""
    may_pass: bool = True
    """Whether another attempt may do better."""
