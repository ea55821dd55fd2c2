"""Harbor: its tasks are environment and reward of a training run, its agents play them.

Invariant: a rollout is one trial. The calls of its agent go to the policy, and the key that opens
them reaches the agent alone.
"""

from abut.harbor.trial_agent import harbor_tasks

__all__ = ["harbor_tasks"]
