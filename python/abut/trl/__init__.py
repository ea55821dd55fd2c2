"""TRL: a `rollout_func` for `GRPOTrainer`, and the reward functions that go with it."""

from abut.tools.environment_factory import from_environment_factory
from abut.trl.rewards import env_reward, scored_only
from abut.trl.rollout_func import make_rollout_func

__all__ = ["env_reward", "from_environment_factory", "make_rollout_func", "scored_only"]
