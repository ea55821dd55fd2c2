"""trl-env's rollouts in separate processes; here all rollouts of a batch are played at once."""

from abut.trl_env.rollout import RolloutState, make_reward_func, make_rollout_func, rollout

__all__ = [
    "RolloutState",
    "make_reward_func",
    "make_rollout_func",
    "make_rollout_func_mp",
    "rollout",
]

make_rollout_func_mp = make_rollout_func
