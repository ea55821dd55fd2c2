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
from abut.agents import Agent, AgentResult, Endpoint, agent
from abut.envs.env import AsyncEnv, Env
from abut.envs.task import EnvPool
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
from abut.parts import PROVENANCE, Content, Part, Scaffold
from abut.processor import PartsProcessor, Processor
from abut.records.read import read_records
from abut.records.recorder import JsonlRecorder, ParquetRecorder
from abut.records.viewer.page import Page, view
from abut.rollout.config import RolloutConfig
from abut.rollout.rollout import Rollout, StopReason
from abut.samplers.sampler import BatchSampler, Sample, Sampler, SampleRequest
from abut.samplers.scripted import ScriptedSampler
from abut.samplers.turns import StreamSampler
from abut.template.processor import ChatTemplateProcessor
from abut.tool_calls.parse import MalformedCall, ParsedCalls, ToolCall, parse_tool_calls
from abut.tools.tool_env import tool_env

__all__ = [
    "PROVENANCE",
    "AbutError",
    "Agent",
    "AgentResult",
    "AsyncEnv",
    "BatchSampler",
    "ChatTemplateProcessor",
    "Columns",
    "Content",
    "ControlTokenError",
    "Endpoint",
    "Env",
    "EnvError",
    "EnvPool",
    "InvalidAction",
    "JsonlRecorder",
    "MalformedCall",
    "Merge",
    "MissingExtraError",
    "Page",
    "ParquetRecorder",
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
    "agent",
    "collate",
    "parse_tool_calls",
    "read_records",
    "stitch",
    "tool_env",
    "view",
]
