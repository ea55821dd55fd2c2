"""NeMo Gym: its unmodified agents play rollouts of a training run, asked over HTTP alone."""

from abut.nemo_gym.gym_agent import NemoGym

__all__ = ["NemoGym"]
