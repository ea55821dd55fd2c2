"""An OpenAI-compatible endpoint in front of the policy, for agents that own their loop."""

from abut.gateway.server.gateway import Gateway

__all__ = ["Gateway"]
