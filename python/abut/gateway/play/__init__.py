"""Plays the rollouts of agents, which call the policy through the gateway."""
