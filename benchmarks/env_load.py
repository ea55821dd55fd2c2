"""What the row `environments` plays, and where."""

from collections.abc import Sequence
from dataclasses import dataclass

THREADS, OPENENV, RAY = "threads", "OpenEnv", "RayPool"
"""The sides: environments of this process, of servers, of a cluster; both are started here."""


@dataclass(frozen=True)
class Load:
    """What is played in one go."""

    rollouts: int
    turns: int
    busy_s: float = 0.0
    """How long a step keeps a processor busy."""


@dataclass(frozen=True)
class Side:
    """What is measured in one process."""

    name: str
    processes: int
    """Of environments, where they have processes of their own."""
    size: int
    """Environments at once, at most."""
    loads: Sequence[Load]
    cores: Sequence[int]
    """Which this process, and what it starts, may use; empty: as it is."""
