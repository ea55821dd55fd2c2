"""Rollouts kept on disk, and shown."""
