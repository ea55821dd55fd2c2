"""Samplers in this process, which run on the thread that called the engine, and `EngineSampler`.

Invariant: samplers in this process run only on that thread, because some frameworks keep state
for each thread (CUDA's device, inference mode), and collectives between processes need it. A turn
is answered at most once. A turn that its rollout has given up is not handed out, and a late answer
is dropped.
"""

import asyncio
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias, runtime_checkable

from abut.concurrency.mailbox import settles_on_loop
from abut.concurrency.threads import InterruptibleQueue
from abut.errors import SamplerError
from abut.samplers.sampler import (
    BatchSampler,
    BoundedSampler,
    ForgettingSampler,
    ImageSampler,
    Sample,
    Sampler,
    SampleRequest,
)


class PendingTurn:
    """One request, and the rollout that waits for its sample."""

    __slots__ = ("_future", "_settle", "request")

    def __init__(self, request: SampleRequest, future: asyncio.Future[Any]) -> None:
        self.request = request
        self._future = future
        self._settle = settles_on_loop(future)

    @property
    def given_up(self) -> bool:
        """True if no rollout waits for the turn: a deadline has passed, or the batch has ended."""
        return self._future.cancelled()

    def answer(self, sample: Sample) -> None:
        """Hand over the sample."""
        self._settle(sample, None)

    def fail(self, error: BaseException) -> None:
        """Fail the turn, and with it the whole batch."""
        self._settle(None, error)


class PendingTurns:
    """The waiting turns of one batch of rollouts, in the order of arrival."""

    def __init__(self) -> None:
        self._queue: InterruptibleQueue[PendingTurn | None] = InterruptibleQueue()
        self.closed = False
        """True once no more turns will come."""
        self.error: BaseException | None = None
        """The error that ended the batch, if any."""

    async def sample(self, request: SampleRequest) -> Sample:
        """Add a turn, and wait until the calling thread has sampled it."""
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._queue.put(PendingTurn(request, future))
        return await future

    def close(self, error: BaseException | None = None) -> None:
        """Note that no more turns will come."""
        self.error = error
        self._queue.put(None)

    def take(self, wait_s: float | None, at_most: int | None = None) -> list[PendingTurn]:
        """Return the waiting turns; if there are none, wait for the first.

        Args:
            wait_s: how long to wait for the first; None waits until a turn comes or the batch ends.
            at_most: how many turns; None returns all.
        """
        turns: list[PendingTurn] = []
        if self.closed and wait_s is None:
            return turns
        try:
            turn = self._queue.get(timeout=wait_s)
            while turn is not None:
                if not turn.given_up:
                    turns.append(turn)
                if len(turns) == at_most:
                    return turns
                # All turns so far may have been given up by now.
                waits = wait_s is None and not turns
                turn = self._queue.get() if waits else self._queue.get_nowait()
            self.closed = True
        except queue.Empty:
            pass
        return turns


@runtime_checkable
class StreamSampler(Protocol):
    """A sampler that takes turns as they come, on the thread that called the engine.

    For inference engines in this process. At most `max_requests` turns wait for an answer at once.
    """

    def sample_stream(self, turns: "PendingTurns") -> None:
        """Sample until no more turns will come.

        `turns.take` returns waiting turns, `turn.answer` hands over a sample. Drop turns that are
        `given_up`, with everything sampled for them. An error raised here ends the batch.
        """
        ...


# How long to wait for more turns after the first, while rollouts are still stepping: a batch of one
# turn costs the model nearly as much as a batch of all.
_GATHER_S = 0.02

AnySampler: TypeAlias = Sampler | BatchSampler | StreamSampler


class EngineSampler:
    """A sampler of any kind, with one interface for the engine.

    The engine asks for one turn at a time with `sample`. This class hides whether the sampler draws
    it on the batch's event loop, in a call for many turns, or in a stream of turns.

    Attributes:
        in_process: whether a model in this process samples the turns; timeouts cannot interrupt it.
        takes_images: whether the sampler uses the images of a request.
    """

    def __init__(self, sampler: AnySampler) -> None:
        # Kinds are asked once: a look at a protocol costs as much as an append.
        self.in_process = isinstance(sampler, BatchSampler)
        self._sampler = sampler
        self._turns = PendingTurns()
        self._one_turn: Sampler = self._turns
        if not isinstance(sampler, BatchSampler | StreamSampler):
            self._one_turn = sampler
        self._bounded = sampler if isinstance(sampler, BoundedSampler) else None
        self._forgetting = sampler if isinstance(sampler, ForgettingSampler) else None
        self.takes_images = isinstance(sampler, ImageSampler) and sampler.takes_images

    @property
    def max_context_tokens(self) -> int | None:
        """The most tokens of prompt and completion together; None if not known yet."""
        return None if self._bounded is None else self._bounded.max_context_tokens

    def forget(self, rollout_id: str) -> None:
        """Tell the sampler that an attempt at a rollout is over."""
        if self._forgetting is not None:
            self._forgetting.forget(rollout_id)

    def on_calling_thread(self) -> AbstractContextManager[Any]:
        """The sampler's own context for a batch, on the thread that called the engine."""
        own = self._sampler
        return own if isinstance(own, AbstractContextManager) else nullcontext()

    def on_batch_loop(self) -> AbstractAsyncContextManager[Any]:
        """The sampler's own context for a batch, on the loop of the batch."""
        own = self._sampler
        return own if isinstance(own, AbstractAsyncContextManager) else nullcontext()

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn.

        Raises:
            TypeError: the request has images, but the sampler does not accept them.
        """
        if request.images and not self.takes_images:
            raise TypeError(
                f"{request.where} has images, but {type(self._sampler).__name__} does not accept "
                "images\nhint: use a sampler whose takes_images is True, such as "
                "TransformersSampler(…, images=ImageProcessor(hf_processor)), or a vLLM sampler "
                "with a vision-language model"
            )
        return await self._one_turn.sample(request)

    def serve(self, done: Future[Any], at_most: Callable[[], int]) -> None:
        """Sample the turns that must be sampled on this thread, until the batch is done; blocks.

        Args:
            done: the batch.
            at_most: how many turns can wait at once.

        Raises:
            SamplerError: `sample_stream` returned too early. Errors of `sample_stream` are raised
                here as well; errors of `sample_batch` fail the batch.
        """
        turns, sampler = self._turns, self._sampler
        done.add_done_callback(lambda done: turns.close(done.exception()))
        if isinstance(sampler, BatchSampler):
            while not turns.closed:
                if gathered := _gather(turns, at_most):
                    _sample(sampler, gathered)
        elif isinstance(sampler, StreamSampler):
            sampler.sample_stream(turns)
            if not turns.closed:
                raise SamplerError(
                    "sample_stream returned while rollouts still need samples\n"
                    "hint: sample_stream must run until turns.closed is True"
                )
        else:
            turns.take(None)  # no turn ever comes: this waits for the end


def _gather(turns: PendingTurns, at_most: Callable[[], int]) -> list[PendingTurn]:
    """Wait for turns; return those that arrive close together."""
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
