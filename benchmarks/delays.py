"""What samples and steps take where they take time: drawn once, the same for all who play."""

import numpy as np
from numpy.typing import NDArray

SIGMA = 1.0
"""Of the log-normal distribution."""
SLOWEST = "the slowest rollout by itself"
"""The least that any batch takes, as a side."""


def draw_delays(seed: int, median_s: float, rollouts: int, turns: int) -> NDArray[np.float64]:
    """`(2, rollouts, turns)` seconds of samples and of steps."""
    normal = np.random.default_rng(seed).standard_normal((2, rollouts, turns))
    return median_s * np.exp(SIGMA * normal)


def slowest_s(delays: NDArray[np.float64]) -> float:
    """Seconds of the rollout that takes longest."""
    return float(delays.sum(axis=(0, 2)).max())
