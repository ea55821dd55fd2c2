"""Copy the row: the demo's environment, easy enough to learn from random weights in a minute."""

import random
from typing import Self


class CopyRowEnv:
    """Each turn shows a row of one symbol, `Say 2222`; the right answer is that row.

    `reward` is the mean overlap with the row over all `turns`, 0 to 1, so it is dense: one right
    character among noise already counts, and only the exact row, nothing more, counts in full.
    What is right depends on what this turn shows: always the same answer earns `1/len(symbols)`.

    Any text is an answer, also one that was cut by length and never closed: a model that has
    learned nothing yet rarely emits the stop token.

    Args:
        turns: rows in one episode.
        symbols: what a row may consist of. Digits, because tokenizers keep them apart: a row of
            four is four tokens, so an answer of four tokens can be exact without a stop token.
        length: symbols in a row. One would do as a task, but a row weighs more in the attention
            of an untrained model: with `Say 2` it had not learned to read it in 120 steps.
    """

    def __init__(self, turns: int = 3, symbols: str = "0123", length: int = 4) -> None:
        self.turns = turns
        self.symbols = symbols
        self.length = length
        self.reward = 0.0
        self.alive = True
        self._shown: list[str] = []
        self._turn = 0

    def reset(self, seed: str, *, episode_seed: int = 0) -> tuple[Self, str]:
        """Begin; the rows follow from `seed` and `episode_seed` alone."""
        rng = random.Random(f"{episode_seed} {seed}")
        self._shown = [rng.choice(self.symbols) for _ in range(self.turns)]
        self._turn, self.reward, self.alive = 0, 0.0, True
        return self, self._prompt()

    def step(self, action: str) -> tuple[Self, str]:
        """Score the answer and show the next row; after the last one the episode is over."""
        self.reward += self.overlap(action.strip(), self._shown[self._turn]) / self.turns
        self._turn += 1
        self.alive = self._turn < self.turns
        return self, self._prompt() if self.alive else "Done."

    def overlap(self, answer: str, symbol: str) -> float:
        """How much of the longer of answer and row is the row's symbol: 0 to 1."""
        return min(answer.count(symbol), self.length) / max(len(answer), self.length)

    def _prompt(self) -> str:
        return f"Say {self._shown[self._turn] * self.length}"
