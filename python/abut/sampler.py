"""Samplers: what draws tokens from the policy.

A sampler never sees text. It gets the ids of a request and returns the ids that it sampled, each
with its own logprob under the distribution it was drawn from, the stop token included.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from abut.errors import SamplerError

if TYPE_CHECKING:
    from abut.pending import PendingTurns

Ids: TypeAlias = NDArray[np.int64]
Logprobs: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One turn of one rollout."""

    prompt_ids: Ids
    """`(T,)` int64, read-only: all ids of the trajectory so far. `torch.tensor(ids)` copies it."""
    max_tokens: int
    """At most so many sampled tokens."""
    stop_token_ids: tuple[int, ...]
    """A sampled token of these ends the turn and is part of the sample."""
    seed: int
    """Own seed of this turn."""
    rollout_id: str
    turn: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What was sampled for one request."""

    ids: Ids
    """`(T,)` int64, verbatim."""
    logprobs: Logprobs
    """`(T,)` float32, nats, aligned with `ids`."""
    finish_reason: Literal["stop", "length"]
    """`stop`: ended on a stop token or a stop string; `length`: cut by `max_tokens`."""
    stop_string: str | None = None
    """The stop string on which it ended. `ids` are whole: with the token that it begins inside, and
    with what stands behind it."""


@runtime_checkable
class Sampler(Protocol):
    """Draws one turn at a time; many calls run at once on the engine's event loop.

    One that is also an async context manager is entered on that loop for each batch. One that has
    `max_context_tokens`, an int or None, bounds prompt and completion by it.
    """

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn."""
        ...


@runtime_checkable
class BatchSampler(Protocol):
    """Draws many turns in one call, on the thread that called the engine (in-process models).

    This and `StreamSampler`: one that is also a context manager is entered for each batch of
    rollouts.
    """

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Sample one turn for each request, in order."""
        ...


@runtime_checkable
class StreamSampler(Protocol):
    """Draws turns as they come, on the thread that called the engine (engines in this process).

    At most `max_requests` turns are out at once. One that has `max_context_tokens`, an int or None,
    bounds prompt and completion by it.
    """

    def sample_stream(self, turns: "PendingTurns") -> None:
        """Sample until no turn comes any more.

        `turns.take` gives those that wait, `turn.answer` hands over a sample. A turn that is
        `given_up` is dropped, whatever was sampled of it. What is raised here ends the batch.
        """
        ...


def check_sample(sample: object, request: SampleRequest) -> Sample:
    """Return the sample, or say what is wrong with it.

    Raises:
        SamplerError: it is no `Sample`, or longer than was asked for.
    """
    where = f"rollout {request.rollout_id}, turn {request.turn}"
    if not isinstance(sample, Sample):
        raise SamplerError(f"{where}: the sampler returned {type(sample).__name__}, not a Sample")
    if len(sample.ids) > request.max_tokens:
        raise SamplerError(
            f"{where}: the sampler returned {len(sample.ids)} tokens, {request.max_tokens} allowed"
        )
    return sample


Script: TypeAlias = Callable[[SampleRequest], Sequence[int]]


class ScriptedSampler:
    """A sampler that says what a script tells it: a tool for tests and benchmarks.

    Args:
        script: gives the ids for a request; cut at `max_tokens`.
        logprob: gives the logprob of the token at an index of the sample, in nats.
        delay_s: gives the seconds that the answer takes.
    """

    def __init__(
        self,
        script: Script,
        *,
        logprob: Callable[[int], float] = lambda index: -0.5 - index / 64,
        delay_s: Callable[[SampleRequest], float] | None = None,
    ) -> None:
        self._script = script
        self._logprob = logprob
        self._delay_s = delay_s
        self.requests: list[SampleRequest] = []

    async def sample(self, request: SampleRequest) -> Sample:
        """Answer by the script."""
        self.requests.append(request)
        if self._delay_s is not None:
            await asyncio.sleep(self._delay_s(request))
        ids = list(self._script(request))[: request.max_tokens]
        stopped = bool(ids) and ids[-1] in request.stop_token_ids
        return Sample(
            np.asarray(ids, dtype=np.int64),
            np.asarray([self._logprob(index) for index in range(len(ids))], dtype=np.float32),
            "stop" if stopped else "length",
        )
