"""Inspect AI: a task, unmodified, is environment and reward of a training run.

Invariant: a rollout's calls go to the policy, and nothing else does: a scorer that would ask the
policy is an error. The package is not imported before a task is named.
"""

from abut.inspect_ai.inspect_agent import inspect_task

__all__ = ["inspect_task"]
