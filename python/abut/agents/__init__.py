"""Agents: programs that run their own loop and call the policy at an OpenAI-compatible endpoint.

Invariant: an agent never sees tokens and the policy never sees the agent; between them is the
gateway, which keeps each conversation exact to the token.
"""

from abut.agents.dataset_agent import Serving
from abut.agents.function_agent import agent
from abut.agents.harness import ClaudeCode, Codex, HarnessResult
from abut.agents.protocol import Agent, AgentResult, Endpoint
from abut.envs.signatures import UnplayableRow

__all__ = [
    "Agent",
    "AgentResult",
    "ClaudeCode",
    "Codex",
    "Endpoint",
    "HarnessResult",
    "Serving",
    "UnplayableRow",
    "agent",
]
