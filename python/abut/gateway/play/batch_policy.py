"""What a session asks, where a batch of rollouts plays it.

Invariant: samples are drawn on the loop of the batch, with its slots, seeds, limits and weights, as
those of environments are; all else is done on the loop of the gateway, which is the same but for
a stream.
"""

import asyncio
import dataclasses
import hashlib
from collections import Counter
from dataclasses import dataclass

from abut._native import Tokenizer
from abut.concurrency.clock import Clock
from abut.concurrency.loop import LoopTasks
from abut.envs.task import RolloutTask
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.policy import ClientWarnings
from abut.gateway.ledger.refusal import over
from abut.gateway.ledger.unnamed import _refused
from abut.gateway.ledger.writer import Writer, Writers
from abut.processor import PartsProcessor
from abut.rollout.batch import Batch
from abut.rollout.conversation import Budget, Conversation
from abut.rollout.episode import sample_seed
from abut.rollout.rollout import StopReason
from abut.samplers.sampler import Sample, SampleRequest


@dataclass(frozen=True)
class Shared:
    """What the rollouts of an agent share."""

    processors: Writers
    notes: ClientWarnings


class BatchPolicy:
    """The policy of one attempt, made on the loop of the batch.

    Attributes:
        failure: holds why nothing can go on, where that is so.
        clock: stands still while a model in this process samples.
    """

    clock: Clock

    def __init__(self, shared: Shared, batch: Batch, task: RolloutTask, attempt: int) -> None:
        self.tokenizer: Tokenizer = batch.tokenizer
        self.max_turns = batch.config.max_turns
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shared = shared
        self._batch = batch
        self._task = task
        self._attempt = attempt
        self._on_batch = LoopTasks(asyncio.get_running_loop())

    def conversation(self, processor: PartsProcessor) -> Conversation:
        """One in which nothing is said yet."""
        return self._batch.conversation(processor)

    def budget(self) -> Budget:
        """What a conversation may have."""
        return self._batch.budget()

    def seed(self, number: int) -> int:
        """That of the sample of one call."""
        return sample_seed(self._batch.config.seed, self._task, self._attempt, number)

    async def writer_of(self, request: AgentRequest) -> Writer:
        """What writes the conversation of a request."""
        return await self._shared.processors.of(request)

    def note(self, request: AgentRequest) -> None:
        """See what a request asks for that it does not get."""
        self._shared.notes.see(request)

    async def sample(self, request: SampleRequest, chat: AgentRequest) -> Sample:
        """Draw one turn; the trainer's settings win over the client's.

        Raises:
            Refusal: not in the time that there is.
        """
        seconds = self._batch.config.turn_timeout_s
        try:
            async with asyncio.timeout(None if self._batch.in_process else seconds):
                return await self._on_batch.run(lambda: self._sampled(request))
        except TimeoutError:
            raise over(f"turn_timeout_s={seconds:g} is over", reason=StopReason.DEADLINE) from None

    def failed(self, error: Exception) -> None:
        """Note that nothing can go on."""
        self._on_batch.submit(lambda: self._fail(error))

    def end(self) -> None:
        """Draw nothing any more; on the loop of the batch."""
        self._on_batch.cancel()
        if self.failure.done() and not self.failure.cancelled():
            self.failure.exception()  # seen, or of no concern any more

    async def _sampled(self, request: SampleRequest) -> Sample:
        if not self._batch.in_process:
            return await self._batch.sample(request)
        with self.clock.stopped():
            return await self._batch.sample(request)

    async def _fail(self, error: Exception) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)


class JudgePolicy:
    """Draws a judge's answers with the sampler, slots and limits of a batch.

    Made on the loop of the batch, and asked on that of the gateway.

    Attributes:
        tokenizer: makes the tokens.
        max_turns: None: a judge's calls are counted, and not bounded.
        error: why the sampler failed, where it did: that ends the batch.
    """

    def __init__(self, shared: Shared, batch: Batch) -> None:
        self.tokenizer = batch.tokenizer
        self.max_turns: int | None = None
        self.error: Exception | None = None
        self._shared = shared
        self._batch = batch
        self._on_batch = LoopTasks(asyncio.get_running_loop())
        self._asked: Counter[str] = Counter()

    def conversation(self, processor: PartsProcessor) -> Conversation:
        """Return a conversation in which nothing is said yet."""
        return self._batch.conversation(processor)

    def budget(self) -> Budget:
        """Return what a conversation may have."""
        return self._batch.budget()

    def seed(self, number: int) -> int:
        """Return a seed that `sample` replaces: only there the prompt is known."""
        return number

    async def writer_of(self, request: AgentRequest) -> Writer:
        """Return what writes the conversation of a request."""
        return await self._shared.processors.of(request)

    def note(self, request: AgentRequest) -> None:
        """See what a request asks for that it does not get."""
        self._shared.notes.see(request)

    async def sample(self, request: SampleRequest, chat: AgentRequest) -> Sample:
        """Draw one answer; the trainer's settings win over the judge's.

        Raises:
            Refusal: not in the time that there is.
        """
        request = self._seeded(request)
        seconds = self._batch.config.turn_timeout_s
        try:
            async with asyncio.timeout(None if self._batch.in_process else seconds):
                return await self._on_batch.run(lambda: self._batch.sample_apart(request))
        except TimeoutError:
            raise _refused(f"turn_timeout_s={seconds:g} is over") from None

    def failed(self, error: Exception) -> None:
        """Keep why nothing can go on."""
        self.error = self.error or error

    def end(self) -> None:
        """Draw nothing any more; on the loop of the batch."""
        self._on_batch.cancel()

    def _seeded(self, request: SampleRequest) -> SampleRequest:
        """The same with a seed that follows from what is asked, and not from who was faster."""
        asked = hashlib.blake2b(request.prompt_ids.tobytes(), digest_size=8).hexdigest()
        self._asked[asked] += 1
        parts = f"{self._batch.config.seed}/judge/{asked}/{self._asked[asked]}"
        digest = hashlib.blake2b(parts.encode(), digest_size=8).digest()
        return dataclasses.replace(request, seed=int.from_bytes(digest, "big") >> 1)
