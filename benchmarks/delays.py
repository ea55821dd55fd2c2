"""Delays of samples and steps, drawn once and the same for all sides."""

import numpy as np
from numpy.typing import NDArray

SIGMA = 1.0
"""Sigma of the log-normal distribution."""
SLOWEST = "the slowest rollout by itself"
"""The side with the shortest possible time of a batch."""


def draw_delays(seed: int, median_s: float, rollouts: int, turns: int) -> NDArray[np.float64]:
    """Return the `(2, rollouts, turns)` seconds of samples and of steps."""
    normal = np.random.default_rng(seed).standard_normal((2, rollouts, turns))
    return median_s * np.exp(SIGMA * normal)


def slowest_s(delays: NDArray[np.float64]) -> float:
    """Return the seconds of the slowest rollout."""
    return float(delays.sum(axis=(0, 2)).max())
