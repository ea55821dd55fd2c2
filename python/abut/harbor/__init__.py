"""Tasks of Harbor as environment and reward of a training run, with Harbor's agents.

Invariant: a rollout is one trial. Its agent's calls go to the policy, and only the agent receives
the rollout's key.
"""

from abut.harbor.trial_agent import harbor_tasks

__all__ = ["harbor_tasks"]
