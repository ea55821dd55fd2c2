"""This is the public API of abut.

Conversations between a policy and its environments, joined end to end: exact to the token.
"""

from abut._native import (
    Columns,
    Merge,
    Seam,
    Stitched,
    Tokenizer,
    Trajectory,
    Transition,
    Turn,
    __version__,
    collate,
    stitch,
)
from abut.env import AsyncEnv, Env, EnvPool
from abut.errors import (
    AbutError,
    ControlTokenError,
    EnvError,
    InvalidAction,
    MissingExtraError,
    RolloutError,
    SamplerError,
    SeamError,
    TemplateError,
    TokenizerError,
    TrajectoryError,
)
from abut.parts import Content, Part, Scaffold
from abut.processor import ChatTemplateProcessor, PartsProcessor, Processor
from abut.record import JsonlRecorder, read_records
from abut.rollout import Rollout, RolloutConfig, StopReason
from abut.sampler import (
    BatchSampler,
    Sample,
    Sampler,
    SampleRequest,
    ScriptedSampler,
    StreamSampler,
)
from abut.tool_calls import MalformedCall, ParsedCalls, ToolCall, parse_tool_calls
from abut.tools import tool_env

PROVENANCE = ("prompt", "env", "scaffold", "sampled", "close")
"""The names of the codes in `Trajectory.provenance`: `PROVENANCE[code]`."""

__all__ = [
    "PROVENANCE",
    "AbutError",
    "AsyncEnv",
    "BatchSampler",
    "ChatTemplateProcessor",
    "Columns",
    "Content",
    "ControlTokenError",
    "Env",
    "EnvError",
    "EnvPool",
    "InvalidAction",
    "JsonlRecorder",
    "MalformedCall",
    "Merge",
    "MissingExtraError",
    "ParsedCalls",
    "Part",
    "PartsProcessor",
    "Processor",
    "Rollout",
    "RolloutConfig",
    "RolloutError",
    "Sample",
    "SampleRequest",
    "Sampler",
    "SamplerError",
    "Scaffold",
    "ScriptedSampler",
    "Seam",
    "SeamError",
    "Stitched",
    "StopReason",
    "StreamSampler",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "ToolCall",
    "Trajectory",
    "TrajectoryError",
    "Transition",
    "Turn",
    "__version__",
    "collate",
    "parse_tool_calls",
    "read_records",
    "stitch",
    "tool_env",
]
