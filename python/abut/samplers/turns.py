"""The turns that wait to be sampled on the thread that called the engine.

Invariant: a turn is answered at most once, and one that its rollout has given up is not handed out
any more. What is answered too late is thrown away.
"""

import asyncio
import queue
from typing import Any, Protocol, runtime_checkable

from abut.concurrency.mailbox import settles_on_loop
from abut.concurrency.threads import InterruptibleQueue
from abut.samplers.sampler import Sample, SampleRequest


class PendingTurn:
    """One request, and the rollout that waits for its sample."""

    __slots__ = ("_future", "_settle", "request")

    def __init__(self, request: SampleRequest, future: asyncio.Future[Any]) -> None:
        self.request = request
        self._future = future
        self._settle = settles_on_loop(future)

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for it any more: a deadline passed, or the batch was ended."""
        return self._future.cancelled()

    def answer(self, sample: Sample) -> None:
        """Hand over what was sampled."""
        self._settle(sample, None)

    def fail(self, error: BaseException) -> None:
        """Say why nothing was sampled, which ends the whole batch."""
        self._settle(None, error)


class PendingTurns:
    """The turns of one batch of rollouts, in the order in which they came."""

    def __init__(self) -> None:
        self._queue: InterruptibleQueue[PendingTurn | None] = InterruptibleQueue()
        self.closed = False
        """Whether no turn comes any more."""
        self.error: BaseException | None = None
        """Why the batch ended, where it did not end well."""

    async def sample(self, request: SampleRequest) -> Sample:
        """Wait until another thread has sampled this one."""
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._queue.put(PendingTurn(request, future))
        return await future

    def close(self, error: BaseException | None = None) -> None:
        """Say that no turn comes any more."""
        self.error = error
        self._queue.put(None)

    def take(self, wait_s: float | None, at_most: int | None = None) -> list[PendingTurn]:
        """Return the turns that wait; where none does, those that come first.

        Args:
            wait_s: how long the first one is waited for; None: until it comes, or none will.
            at_most: how many.
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
                # Those that come first may have been given up by now, all of them.
                waits = wait_s is None and not turns
                turn = self._queue.get() if waits else self._queue.get_nowait()
            self.closed = True
        except queue.Empty:
            pass
        return turns


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
