"""What is said in rollouts, fixed beforehand, so that every way of playing them has the same work.

Invariant: no text comes twice in a script, so that no cache knows one.
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
"""The system prompt, where replies are user turns."""
WITHOUT_LIMIT = 10**9
"""For every limit on tokens that a side asks for: the script's end is what ends a rollout."""


@dataclass
class Script:
    """What is sampled and what is answered in each turn of each rollout."""

    sampled: list[list[NDArray[np.int64]]]
    sampled_lists: list[list[list[int]]]
    """The same, as the samplers of the peers give it: converting is no part of their time."""
    replies: list[list[str]]
    """The first is what the environment begins with."""
    workbench: Workbench
    delays: NDArray[np.float64] | None = None
    """`(2, rollouts, turns)` seconds that samples and steps take; None: they answer at once."""

    @classmethod
    def of(cls, workbench: Workbench, seed: int, rollouts: int) -> "Script":
        """Write one; other texts for every seed."""
        turns, size = workbench.scale.turns, workbench.scale.reply_bytes
        texts = iter(Replies(seed, size).take(rollouts * (2 * turns + 1)))
        sampled = []
        for index in range(rollouts):
            # A call at the end of the policy's text names what the tool is to answer.
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
        """What the tool `search` answers to the query of a sampled call."""
        index, turn = map(int, query.split("-"))
        return self.answer(index, turn)

    def answer(self, index: int, turn: int) -> str:
        """What the environment says to an action; turns are counted from 1, 0 is its opening."""
        if self.delays is not None and turn:
            time.sleep(self.delays[1, index, turn - 1])
        return self.replies[index][turn]

    def sample_s(self, turn: int, index: int | slice = slice(None)) -> float:
        """How long a sample takes, or the slowest of all that are sampled together."""
        return 0.0 if self.delays is None else float(np.max(self.delays[0, index, turn]))


Play: TypeAlias = Callable[[Script], Lists]
"""Plays all rollouts of a script in one way: what is timed."""
