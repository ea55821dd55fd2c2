"""Stitching recorded calls, whose prompts repeat the whole conversation so far."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from abut import Stitched, stitch
from benchmarks.figures import Row, require_same
from benchmarks.measured_conversation import logprobs
from benchmarks.peers import PeerMissing
from benchmarks.timing import Check, Sides, interleave
from benchmarks.workbench import Workbench

ARRAYS, LISTS = "abut, int64 arrays", "abut, Python lists"
TRL = "TRL _chain_to_sequences, Python lists"
CASE = "one conversation"
FORK_THRESHOLD_TOKENS = 16
"""TRL's limit for realigning; the calls here do not reach it."""


def measure(workbench: Workbench) -> Row:
    """Stitch the calls of one long conversation."""
    calls, tokens = workbench.scale.stitch_calls, workbench.scale.stitch_tokens
    row = Row(
        "stitch",
        f"stitch {calls} calls, the last of {tokens:,} tokens",
        equal="ids, mask and logprobs of the chain",
        notes=["Half of each turn is sampled. Python lists are like those that json.loads returns: "
               "every number is a separate object."],
    )  # fmt: skip
    arrays = _calls(calls, tokens)
    lists = [(p.tolist(), c.tolist(), logs.tolist()) for p, c, logs in arrays]
    chain = _trl(workbench, row, lists)

    def prepare(number: int) -> tuple[Sides, Check]:
        def check(results: dict[str, Any]) -> None:
            ours = _columns(results[ARRAYS])
            for peer in results.keys() - {ARRAYS}:
                theirs = _columns(results[peer]) if peer == LISTS else _sequence(results[peer])
                for name, left, right in zip(
                    ("ids", "mask", "logprobs"), ours, theirs, strict=True
                ):
                    require_same(f"{name} of the chain", peer, left, right)

        sides: dict[str, Callable[[], Any]] = {
            ARRAYS: lambda: stitch(arrays),
            LISTS: lambda: stitch(lists),
        }
        return sides | ({} if chain is None else {TRL: chain}), check

    row.add(CASE, interleave(prepare, workbench.scale.stitch_rounds))
    row.need_faster(TRL, CASE, 5, side=ARRAYS, what="TRL ÷ abut, int64 arrays")
    row.need_faster(TRL, CASE, 1, side=LISTS, what="TRL ÷ abut, Python lists")
    return row


def _calls(calls: int, tokens: int) -> list[tuple[Any, Any, Any]]:
    """Return `(prompt_ids, completion_ids, logprobs)` of each call."""
    ids = np.random.default_rng(7).integers(0, 150_000, tokens)
    ends = np.linspace(0, tokens, calls + 1).astype(int)
    made = []
    for begin, end in pairwise(ends):
        middle = (begin + end) // 2
        made.append((ids[:middle].copy(), ids[middle:end].copy(), logprobs(end - middle)))
    return made


def _trl(
    workbench: Workbench, row: Row, lists: list[tuple[Any, Any, Any]]
) -> Callable[[], Any] | None:
    """Return TRL's own function on its own records; None if it is missing."""
    try:
        worker = workbench.peer("trl", "trl.experimental.async_grpo.async_rollout_worker")
        chain, record = worker._chain_to_sequences, worker.TurnRecord
    except PeerMissing as missing:
        row.missing[TRL] = str(missing)
        return None
    except AttributeError as error:
        row.missing[TRL] = f"this version of TRL does not have it: {error}"
        return None
    turns = [record(*call) for call in lists]
    return lambda: chain(turns, "0", FORK_THRESHOLD_TOKENS)


def _columns(stitched: Stitched) -> tuple[Any, Any, Any]:
    (chain,) = stitched.chains
    before = np.zeros(len(chain.prompt_ids))
    return (
        np.append(chain.prompt_ids, chain.completion_ids),
        np.append(before, chain.env_mask),
        np.append(before, chain.logprobs),
    )


def _sequence(result: Any) -> tuple[Any, Any, Any]:
    ((sequence,), _) = result
    return sequence.input_ids, sequence.completion_mask, sequence.old_log_probs
