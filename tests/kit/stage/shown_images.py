"""Rollouts that are shown images."""

from typing import Any

import numpy as np

from abut.images import Image
from tests.kit.training.vision import picture

SHARED = Image.of(picture(9, 40, 56))
SHOWN = (
    [[], [], []],
    [[picture(1)], [], []],
    [[picture(2, 61, 33)], [picture(3)], [SHARED]],
    [[SHARED, picture(4, 32, 80)], [], [SHARED]],
)
"""By rollout and turn."""


class Shows:
    """Shows the images of each turn."""

    def __init__(self, shown: Any) -> None:
        self.reward, self.alive = 0.0, True
        self.left = [*shown]

    def say(self) -> Any:
        blocks = [{"type": "image", "image": image} for image in self.left.pop(0)]
        return self, [*blocks, {"type": "text", "text": "What?"}]

    def reset(self, seed: str) -> Any:
        return self.say()

    def step(self, action: str) -> Any:
        self.alive = bool(self.left)
        return self.say() if self.left else (self, "Done.")


def sampled(rollout: Any, logprobs: Any) -> Any:
    """The logprobs of the row's sampled tokens, of those of all tokens of its completion."""
    return np.asarray(logprobs)[-len(rollout.columns.env_mask) :][rollout.columns.env_mask == 1]
