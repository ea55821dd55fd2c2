"""Plays rollouts: from tasks to trajectories with rewards, many at once."""
