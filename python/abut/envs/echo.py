"""Echo: the smallest environment. For tests of the plumbing, and as a pattern to copy."""

from typing import Self


class EchoEnv:
    """Says back whatever it hears, `turns` times.

    `reward` is the share of turns, of all `turns`, in which something was said: 0 to 1.
    """

    def __init__(self, turns: int = 3) -> None:
        self.turns = turns
        self.reward = 0.0
        self.alive = True
        self._left = turns

    def reset(self, seed: str) -> tuple[Self, str]:
        """Begin; the first text is the seed itself."""
        self.reward, self.alive, self._left = 0.0, True, self.turns
        return self, seed

    def step(self, action: str) -> tuple[Self, str]:
        """Return the action unchanged."""
        if action.strip():
            self.reward += 1 / self.turns
        self._left -= 1
        self.alive = self._left > 0
        return self, action
