"""TRL: a `rollout_func` for `GRPOTrainer`, a `rollout_worker` for `AsyncGRPOTrainer`, rewards."""

from abut.tools.environment_factory import from_environment_factory
from abut.trl.rewards import env_reward, scored_only
from abut.trl.rollout_func import make_rollout_func
from abut.trl.streaming.worker import make_rollout_worker

__all__ = [
    "env_reward",
    "from_environment_factory",
    "make_rollout_func",
    "make_rollout_worker",
    "scored_only",
]
