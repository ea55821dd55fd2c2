"""The loads and sides of the row `environments`."""

from collections.abc import Sequence
from dataclasses import dataclass

THREADS, OPENENV, RAY = "threads", "OpenEnv", "RayPool"
"""The sides: environments in this process, on servers, and in a cluster. The run starts both."""


@dataclass(frozen=True)
class Load:
    """The rollouts of one measurement."""

    rollouts: int
    turns: int
    busy_s: float = 0.0
    """CPU seconds that a step works."""


@dataclass(frozen=True)
class Side:
    """A side, measured in one process."""

    name: str
    processes: int
    """Number of host processes, if the environments have separate ones."""
    size: int
    """The most environments at once."""
    loads: Sequence[Load]
    cores: Sequence[int]
    """The cores that this process and its children may use; empty: unchanged."""
