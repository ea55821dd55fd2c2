"""Scripted engines, agents and environments: what rollouts are played on."""
