"""The gateway: an OpenAI-compatible endpoint for agents that run their own loop."""

from abut.gateway.server.gateway import Gateway

__all__ = ["Gateway"]
