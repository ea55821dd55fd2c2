"""Holds trajectories, or objects made from them, in a new process, and prints the bytes per token.

The row `memory` starts it with the kind of object, the tokenizer's file and the sizes.
"""

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from abut import Columns, Rollout, Tokenizer, Trajectory
from abut.records.record import with_arrays
from abut.rollout.rollout import TurnRecord
from benchmarks.loading import resident_bytes
from benchmarks.measured_conversation import logprobs
from benchmarks.texts import Replies

REPLY_BYTES = 1_200


def main(arguments: Sequence[str]) -> None:
    """Hold objects, and print by how many bytes per token the process grew."""
    kind, path, rollouts, tokens = arguments
    tokenizer = Tokenizer.from_file(path)
    texts = Replies(8, REPLY_BYTES, pool_bytes=200_000).take(64)
    samples = [tokenizer.encode(text) for text in texts]
    turns = [(text, ids, logprobs(len(ids))) for text, ids in zip(texts, samples, strict=True)]
    hold = {"trajectory": _trajectory, "row": _row, "record": _record, "lists": _lists}[kind]
    held = [hold(tokenizer, turns, int(tokens))]  # the first one has one-time costs
    _give_back()
    before = resident_bytes()
    held += [hold(tokenizer, turns, int(tokens)) for _ in range(int(rollouts))]
    _give_back()  # the trajectory of a row is already freed
    after = resident_bytes()
    count = sum(_length(one) for one in held[1:])
    grown = None if before is None or after is None else (after - before) / count
    sys.stdout.write(json.dumps(grown) + "\n")


def _give_back() -> None:
    """Return freed memory to the system (glibc only), so that later growth is visible."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _trajectory(tokenizer: Tokenizer, turns: list[Any], tokens: int) -> Trajectory:
    trajectory = Trajectory(tokenizer)
    while len(trajectory) < tokens:
        text, ids, logs = turns[len(trajectory) % len(turns)]
        trajectory.append_text(text)
        trajectory.request()
        trajectory.append_sampled(ids, logs)
    return trajectory


def _row(tokenizer: Tokenizer, turns: list[Any], tokens: int) -> Columns:
    return _trajectory(tokenizer, turns, tokens).columns()


def _record(tokenizer: Tokenizer, turns: list[Any], tokens: int) -> dict[str, Any]:
    """Return a record as it waits to be written, without the conversation's messages."""
    trajectory = _trajectory(tokenizer, turns, tokens)
    columns = trajectory.columns()
    rollout = Rollout(
        "train-0-0-0-run",
        0,
        columns=columns,
        provenance=trajectory.provenance[: _length(columns)],
        turns=[TurnRecord(turn.start, turn.end, "stop", 0.25, 0.5) for turn in trajectory.turns],
        seams=[("barrier", True)] * (2 * len(trajectory.turns)),
    )
    return with_arrays(rollout)


def _lists(tokenizer: Tokenizer, turns: list[Any], tokens: int) -> list[list[Any]]:
    ids: list[int] = []
    mask: list[int] = []
    logs: list[float] = []
    while len(ids) < tokens:
        _, sampled, logprob = turns[len(ids) % len(turns)]
        ids += sampled.tolist() * 2
        mask += [0] * len(sampled) + [1] * len(sampled)
        logs += [0.0] * len(sampled) + logprob.tolist()
    return [ids, mask, logs]


def _length(held: Any) -> int:
    if isinstance(held, Columns):
        return len(held.prompt_ids) + len(held.completion_ids)
    if isinstance(held, dict):
        return len(held["provenance"])
    return len(held[0]) if isinstance(held, list) else len(held)


if __name__ == "__main__":
    main(sys.argv[1:])
