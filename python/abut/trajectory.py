"""The parts of a trajectory: its turns, who wrote its tokens, and what its seams changed."""

from abut._native import Merge, Transition, Turn
from abut.parts import PROVENANCE

__all__ = ["PROVENANCE", "Merge", "Transition", "Turn"]
