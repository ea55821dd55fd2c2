"""Rollouts without a trainer: play environments and agents, and evaluate a policy."""

from abut.evaluation.summary import Evaluation, PassAt
from abut.evaluation.without_trainer import PlayInterrupted, evaluate, play

__all__ = ["Evaluation", "PassAt", "PlayInterrupted", "evaluate", "play"]
