"""This is the public API of abut.

Conversations between a policy and its environments, joined end to end: exact to the token.

What assembles tokens is here at once. All else is imported when it is first asked for: half of the
processes that import abut, as workers and tools, never ask.
"""

import importlib
import typing

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

if typing.TYPE_CHECKING:
    from abut.agents import Agent, AgentResult, Endpoint, agent
    from abut.envs.env import AsyncEnv, Env
    from abut.envs.task import EnvPool
    from abut.processor import PartsProcessor, Processor
    from abut.records.read import read_records
    from abut.records.recorder import JsonlRecorder, ParquetRecorder
    from abut.records.viewer.page import Page, view
    from abut.rollout.config import RolloutConfig
    from abut.rollout.rollout import Rollout, StopReason
    from abut.samplers.in_process import StreamSampler
    from abut.samplers.sampler import BatchSampler, Sample, Sampler, SampleRequest
    from abut.samplers.scripted import ScriptedSampler
    from abut.template.processor import ChatTemplateProcessor
    from abut.tool_calls.parse import MalformedCall, ParsedCalls, ToolCall, parse_tool_calls
    from abut.tools.tool_env import tool_env

# The same as above, for when the program runs.
_MODULES = {
    "abut.agents": ("Agent", "AgentResult", "Endpoint", "agent"),
    "abut.envs.env": ("AsyncEnv", "Env"),
    "abut.envs.task": ("EnvPool",),
    "abut.processor": ("PartsProcessor", "Processor"),
    "abut.records.read": ("read_records",),
    "abut.records.recorder": ("JsonlRecorder", "ParquetRecorder"),
    "abut.records.viewer.page": ("Page", "view"),
    "abut.rollout.config": ("RolloutConfig",),
    "abut.rollout.rollout": ("Rollout", "StopReason"),
    "abut.samplers.sampler": ("BatchSampler", "Sample", "SampleRequest", "Sampler"),
    "abut.samplers.scripted": ("ScriptedSampler",),
    "abut.samplers.in_process": ("StreamSampler",),
    "abut.template.processor": ("ChatTemplateProcessor",),
    "abut.tool_calls.parse": ("MalformedCall", "ParsedCalls", "ToolCall", "parse_tool_calls"),
    "abut.tools.tool_env": ("tool_env",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

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


def __getattr__(name: str) -> object:
    """Import what is asked for the first time."""
    module = _MODULE_OF.get(name)
    if module is None:
        # As a folder whose modules hold names of the table: `abut.records`.
        module = f"{__name__}.{name}"
        if not any(f"{other}.".startswith(f"{module}.") for other in _MODULES):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        return importlib.import_module(module)
    value: object = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
