"""The policies of a batch: one for each attempt, and one for a judge.

Invariant: samples are drawn on the loop of the batch, with its slots, limits and weights, exactly
as for environments. Everything else happens on the loop of the gateway.
"""

import asyncio
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from abut.concurrency.clock import TimeLimit
from abut.concurrency.loop import LoopTasks
from abut.envs.task import RolloutTask
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.policy import ClientWarnings
from abut.gateway.ledger.refusal import Refusal, limit_reached, not_answered
from abut.gateway.ledger.writer import Writer, Writers
from abut.processor import PartsProcessor
from abut.rollout.batch import Batch
from abut.rollout.budget import Budget
from abut.rollout.conversation import Conversation
from abut.rollout.episode import sample_seed
from abut.rollout.rollout import StopReason
from abut.samplers.sampler import Sample, SampleRequest


@dataclass(frozen=True)
class AgentBatch:
    """The parts of a batch that the rollouts of one agent share.

    Attributes:
        batch: draws samples.
        writers: write the conversations.
        warnings: about fields of requests that are not followed.
        draws_by_tokens: see `RowChoice.by_tokens`.
        rewards_turns: see `AgentSource`.
        session_header: see `AgentSource`, as for `max_calls`.
    """

    batch: Batch
    writers: Writers
    warnings: ClientWarnings
    draws_by_tokens: bool = False
    rewards_turns: bool = False
    session_header: str | None = None
    max_calls: int | None = None


class BatchPolicy:
    """Draws samples from a batch; created on the batch's loop, and used on the gateway's.

    Attributes:
        max_turns: see `Policy`, as for `max_calls` and `max_rollout_tokens`.
    """

    max_turns: int | None = None
    max_calls: int | None = None
    max_rollout_tokens: int | None = None

    def __init__(self, shared: AgentBatch) -> None:
        self.tokenizer = shared.batch.tokenizer
        self._shared = shared
        self._batch = shared.batch
        self._on_batch = LoopTasks(asyncio.get_running_loop())

    def conversation(self, processor: PartsProcessor) -> Conversation:
        """Return an empty conversation."""
        return self._batch.conversation(processor)

    def budget(self) -> Budget:
        """Return the token limits of a conversation."""
        return self._batch.budget()

    async def writer_of(self, request: AgentRequest) -> Writer:
        """Return the writer of a request's conversation."""
        return await self._shared.writers.of(request)

    def note(self, request: AgentRequest) -> None:
        """Warn about fields of a request that are not followed."""
        self._shared.warnings.warn_about(request)

    def end(self) -> None:
        """Stop drawing samples; call this on the loop of the batch."""
        self._on_batch.cancel()

    async def _drawn(
        self, draw: Callable[[], Awaitable[Sample]], refuse: Callable[[str], Refusal]
    ) -> Sample:
        """Draw a turn on the batch's loop, with the trainer's settings, not the client's.

        The time limit does not apply to a model in this process: it samples for all rollouts at
        once, so no single sample could be stopped.
        """
        seconds = self._batch.config.turn_timeout_s
        try:
            async with asyncio.timeout(None if self._batch.in_process else seconds):
                return await self._on_batch.run(draw)
        except TimeoutError:
            raise refuse(f"the turn was not sampled within turn_timeout_s={seconds:g}") from None


class AttemptPolicy(BatchPolicy):
    """The policy of one attempt.

    Attributes:
        failure: gets the error after which the batch cannot continue.
        clock: paused while a model in this process samples.
    """

    clock: TimeLimit

    def __init__(self, shared: AgentBatch, task: RolloutTask, attempt: int) -> None:
        super().__init__(shared)
        config = self._batch.config
        self.max_turns = config.max_turns
        limits = [most for most in (config.max_calls, shared.max_calls) if most is not None]
        self.max_calls = min(limits, default=None)
        self.max_rollout_tokens = config.max_rollout_tokens
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = task
        self._attempt = attempt

    def seed(self, number: int) -> int:
        """Return the seed of a call's sample."""
        return sample_seed(self._batch.config.seed, self._task, self._attempt, number)

    async def sample(self, request: SampleRequest, asked: AgentRequest) -> Sample:
        """Draw one turn.

        Raises:
            Refusal: the time limit has passed.
        """
        return await self._drawn(
            lambda: self._timed(request),
            lambda why: limit_reached(why, reason=StopReason.DEADLINE),
        )

    def failed(self, error: Exception) -> None:
        """Note that the batch cannot continue."""
        self._on_batch.submit(lambda: self._fail(error))

    def end(self) -> None:
        """Stop drawing samples; call this on the loop of the batch."""
        super().end()
        if self.failure.done() and not self.failure.cancelled():
            self.failure.exception()  # or the loop logs the error, if the attempt did not await it

    async def _timed(self, request: SampleRequest) -> Sample:
        if not self._batch.in_process:
            return await self._batch.sample(request)
        with self.clock.paused():
            return await self._batch.sample(request)

    async def _fail(self, error: Exception) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)


class JudgePolicy(BatchPolicy):
    """Draws the answers of a judge. Its calls are counted, but not limited.

    Attributes:
        error: why the sampler failed, which ends the batch; None if it did not.
    """

    def __init__(self, shared: AgentBatch) -> None:
        super().__init__(shared)
        self.error: Exception | None = None
        self._asked: Counter[str] = Counter()

    def seed(self, number: int) -> int:
        """Return a placeholder seed, which `sample` replaces because it knows the prompt."""
        return number

    async def sample(self, request: SampleRequest, asked: AgentRequest) -> Sample:
        """Draw one answer.

        Raises:
            Refusal: the time limit has passed.
        """
        seeded = self._seeded(request)
        return await self._drawn(lambda: self._batch.sample_apart(seeded), not_answered)

    def failed(self, error: Exception) -> None:
        """Keep the error after which the batch cannot continue."""
        self.error = self.error or error

    def _seeded(self, request: SampleRequest) -> SampleRequest:
        """Return the request with a seed that depends on its prompt, not on when it arrived."""
        asked = hashlib.blake2b(request.prompt_ids.tobytes(), digest_size=8).hexdigest()
        self._asked[asked] += 1
        parts = f"{self._batch.config.seed}/judge/{asked}/{self._asked[asked]}"
        digest = hashlib.blake2b(parts.encode(), digest_size=8).digest()
        return dataclasses.replace(request, seed=int.from_bytes(digest, "big") >> 1)
