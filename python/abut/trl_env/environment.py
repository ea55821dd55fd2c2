"""Environments, under trl-env's names."""

from typing import TypeAlias

from abut.envs.env import Env

__all__ = ["Action", "Delta", "Env", "Seed"]

Action: TypeAlias = str
Delta: TypeAlias = str
Seed: TypeAlias = str
