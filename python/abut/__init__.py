"""This is the public API of abut.

Conversations between a policy and its environments, joined end to end: exact to the token.
"""

from abut._native import Columns, Seam, Tokenizer, Trajectory, Turn, __version__, collate
from abut.errors import (
    AbutError,
    ControlTokenError,
    EnvError,
    MissingExtraError,
    RolloutError,
    SamplerError,
    SeamError,
    TemplateError,
    TokenizerError,
    TrajectoryError,
)
from abut.parts import Content, Part, Scaffold

PROVENANCE = ("prompt", "env", "scaffold", "sampled", "close")
"""The names of the codes in `Trajectory.provenance`: `PROVENANCE[code]`."""

__all__ = [
    "PROVENANCE",
    "AbutError",
    "Columns",
    "Content",
    "ControlTokenError",
    "EnvError",
    "MissingExtraError",
    "Part",
    "RolloutError",
    "SamplerError",
    "Scaffold",
    "Seam",
    "SeamError",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "Trajectory",
    "TrajectoryError",
    "Turn",
    "__version__",
    "collate",
]
