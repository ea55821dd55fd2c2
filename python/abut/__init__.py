"""This is the public API of abut.

Conversations between a policy and its environments, joined end to end: exact to the token.

What assembles tokens is here at once. All else is imported when it is first asked for: half of the
processes that import abut, as workers and tools, never ask.
"""

import importlib
import sys
import typing

from abut import removed
from abut._native import (
    Columns,
    Seam,
    Stitched,
    Tokenizer,
    Trajectory,
    __version__,
    collate,
    stitch,
)
from abut.errors import (
    AbutError,
    InvalidAction,
    RolloutError,
    SamplerError,
    SeamError,
    TemplateError,
    TokenizerError,
)
from abut.parts import Content, Scaffold

if typing.TYPE_CHECKING:
    from abut.agents import Agent, AgentResult, Endpoint, agent
    from abut.envs.env import AsyncEnv, Env
    from abut.envs.task import EnvPool
    from abut.evaluation import Evaluation, evaluate, play
    from abut.images import Image
    from abut.processor import PartsProcessor, Processor
    from abut.rollout.config import RolloutConfig
    from abut.rollout.rollout import Rollout
    from abut.samplers import Sample, Sampler
    from abut.template.processor import ChatTemplateProcessor
    from abut.tool_calls import ToolCall, parse_tool_calls
    from abut.tools.tool_env import tool_env

# The same as above, for when the program runs.
_MODULES = {
    "abut.agents": ("Agent", "AgentResult", "Endpoint", "agent"),
    "abut.envs.env": ("AsyncEnv", "Env"),
    "abut.envs.task": ("EnvPool",),
    "abut.evaluation": ("Evaluation", "evaluate", "play"),
    "abut.images": ("Image",),
    "abut.processor": ("PartsProcessor", "Processor"),
    "abut.rollout.config": ("RolloutConfig",),
    "abut.rollout.rollout": ("Rollout",),
    "abut.samplers": ("Sample", "Sampler"),
    "abut.template.processor": ("ChatTemplateProcessor",),
    "abut.tool_calls": ("ToolCall", "parse_tool_calls"),
    "abut.tools.tool_env": ("tool_env",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AbutError",
    "Agent",
    "AgentResult",
    "AsyncEnv",
    "ChatTemplateProcessor",
    "Columns",
    "Content",
    "Endpoint",
    "Env",
    "EnvPool",
    "Evaluation",
    "Image",
    "InvalidAction",
    "PartsProcessor",
    "Processor",
    "Rollout",
    "RolloutConfig",
    "RolloutError",
    "Sample",
    "Sampler",
    "SamplerError",
    "Scaffold",
    "Seam",
    "SeamError",
    "Stitched",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "ToolCall",
    "Trajectory",
    "__version__",
    "agent",
    "collate",
    "evaluate",
    "parse_tool_calls",
    "play",
    "stitch",
    "tool_env",
]


def __getattr__(name: str) -> object:
    """Import what is asked for the first time."""
    if module := _MODULE_OF.get(name):
        value: object = getattr(importlib.import_module(module), name)
        globals()[name] = value
        return value
    # A module that the tables name, or a folder of such modules: `abut.records`.
    module = f"{__name__}.{name}"
    if any(f"{other}.".startswith(f"{module}.") for other in (*_MODULES, *removed.MOVED)):
        return importlib.import_module(module)
    message = removed.removal(module) or f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message, name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.meta_path.append(removed.RemovedImports)
