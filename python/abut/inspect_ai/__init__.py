"""Tasks of Inspect AI, unchanged, as environment and reward of a training run.

Invariant: only the solvers and tools of a rollout call the policy; a scorer that calls it is an
error. inspect_ai is not imported before a task is named.
"""

from abut.inspect_ai.inspect_agent import inspect_task

__all__ = ["inspect_task"]
