"""NeMo Gym: its unmodified agents play the rollouts of a training run, over HTTP only."""

from abut.nemo_gym.gym_agent import NemoGym

__all__ = ["NemoGym"]
