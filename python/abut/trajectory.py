"""The parts of a trajectory: turns, the authors of its tokens, and seams."""

from abut._native import Merge, Transition, Turn
from abut.parts import PROVENANCE

__all__ = ["PROVENANCE", "Merge", "Transition", "Turn"]
