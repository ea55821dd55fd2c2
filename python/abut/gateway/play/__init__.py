"""Agents' rollouts, played for the engine behind the gateway."""
