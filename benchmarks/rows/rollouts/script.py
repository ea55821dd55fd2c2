"""The texts of rollouts, fixed in advance, so that all sides have the same work.

Invariant: all texts of a script differ, so that caches do not help.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.rows.rollouts.lists import Lists
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench

SYSTEM = "You look for where the time goes."
"""The system prompt, if replies are user turns."""
WITHOUT_LIMIT = 10**9
"""The value of every token limit of a side, because a rollout ends with the script."""


@dataclass
class Script:
    """The samples and replies of each turn of each rollout."""

    sampled: list[list[NDArray[np.int64]]]
    sampled_lists: list[list[list[int]]]
    """The samples as the peers' samplers return them, so that converting them is not timed."""
    replies: list[list[str]]
    """The replies of each rollout; the first is the environment's opening."""
    workbench: Workbench
    delays: NDArray[np.float64] | None = None
    """`(2, rollouts, turns)` seconds of samples and steps; None: no delays."""

    @classmethod
    def of(cls, workbench: Workbench, seed: int, rollouts: int) -> "Script":
        """Write a script; each seed has different texts."""
        turns, size = workbench.scale.turns, workbench.scale.reply_bytes
        texts = iter(Replies(seed, size).take(rollouts * (2 * turns + 1)))
        sampled = []
        for index in range(rollouts):
            # The call at the end of the policy's text names the tool's answer.
            calls = [
                json.dumps({"name": "search", "arguments": {"query": f"{index}-{turn + 1}"}})
                for turn in range(turns)
            ]
            spoken = [f"{next(texts)}\n<tool_call>\n{call}\n</tool_call>" for call in calls]
            close = workbench.processor.close_token_id
            sampled.append([np.append(workbench.tokenizer.encode(text), close) for text in spoken])
        replies = [[next(texts) for _ in range(turns + 1)] for _ in range(rollouts)]
        lists = [[ids.tolist() for ids in one] for one in sampled]
        return cls(sampled, lists, replies, workbench)

    def search(self, query: str) -> str:
        """Return the answer of the tool `search` to the query of a sampled call."""
        index, turn = map(int, query.split("-"))
        return self.answer(index, turn)

    def answer(self, index: int, turn: int) -> str:
        """Return the reply to an action; turns are counted from 1, and 0 is the opening."""
        if self.delays is not None and turn:
            time.sleep(self.delays[1, index, turn - 1])
        return self.replies[index][turn]

    def sample_s(self, turn: int, index: int | slice = slice(None)) -> float:
        """Return the delay of a sample, or of the slowest of several sampled together."""
        return 0.0 if self.delays is None else float(np.max(self.delays[0, index, turn]))


Play: TypeAlias = Callable[[Script], Lists]
"""Plays all rollouts of a script with one side: the timed call."""
