"""Sampling on the thread that called the engine.

Invariant: samplers of this process are called on that thread alone, which is what frameworks with a
state for each thread (CUDA's device, inference mode) and collectives between processes want.
"""

import time
from collections.abc import Callable

from abut.errors import SamplerError
from abut.samplers.sampler import BatchSampler, Sampler
from abut.samplers.turns import PendingTurn, PendingTurns, StreamSampler

# After the first waiting turn, how long further ones are waited for, while rollouts are still
# stepping: a batch of one costs the model nearly what a batch of all does.
_GATHER_S = 0.02


def serve(
    sampler: Sampler | BatchSampler | StreamSampler, turns: PendingTurns, at_most: Callable[[], int]
) -> None:
    """Sample turns until none comes any more.

    Args:
        sampler: one that is not of this process gets no turns, and the end is waited for.
        turns: what waits.
        at_most: how many can be waited for at once.

    Raises:
        SamplerError: `sample_stream` returned too early. What it raises is raised here as well;
            what `sample_batch` raises goes to those who wait for the batch.
    """
    if isinstance(sampler, BatchSampler):
        while not turns.closed:
            if batch := _gather(turns, at_most):
                _sample(sampler, batch)
    elif isinstance(sampler, StreamSampler):
        sampler.sample_stream(turns)
        if not turns.closed:
            raise SamplerError(
                "sample_stream returned while rollouts still need samples\n"
                "hint: it goes on until turns.closed"
            )
    else:
        turns.take(None)


def _gather(turns: PendingTurns, at_most: Callable[[], int]) -> list[PendingTurn]:
    """Wait for turns; returns those that come close together."""
    batch = turns.take(None, at_most())
    deadline = time.monotonic() + _GATHER_S
    while batch and not turns.closed:
        left_s = deadline - time.monotonic()
        missing = at_most() - len(batch)
        if missing < 1 or left_s <= 0:
            break
        batch += turns.take(left_s, missing)
    return [turn for turn in batch if not turn.given_up]


def _sample(sampler: BatchSampler, batch: list[PendingTurn]) -> None:
    try:
        samples = sampler.sample_batch([turn.request for turn in batch])
        if len(samples) != len(batch):
            raise SamplerError(
                f"sample_batch returned {len(samples)} samples for {len(batch)} requests"
            )
    except Exception as error:
        for turn in batch:
            turn.fail(error)
        return
    for turn, sample in zip(batch, samples, strict=True):
        turn.answer(sample)
