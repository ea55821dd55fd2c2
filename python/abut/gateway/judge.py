"""Answers to requests that name no rollout: those of a judge which is the policy itself.

Invariant: what is sampled here stands in no row, so it is never trained; and each request is
counted. Each is a conversation of its own: a judge's history is written again from its text.
"""

import asyncio
import dataclasses
import hashlib
import itertools
import weakref
from collections import Counter
from collections.abc import Collection

from abut.concurrency.loop import LoopTasks
from abut.gateway.batch_policy import Shared
from abut.gateway.policy import Policy
from abut.gateway.processors import Shown
from abut.gateway.refusal import Refusal
from abut.gateway.request import ChatRequest
from abut.gateway.session import Session
from abut.processor import PartsProcessor
from abut.rollout.batch import Batch
from abut.rollout.conversation import Budget, Conversation
from abut.rollout.rollout import StopReason
from abut.samplers.sampler import Sample, SampleRequest

_NUMBERS = itertools.count()


class Judge:
    """Answers the requests of one batch that name no rollout, on the loop of the gateway.

    Args:
        policy: draws the answers.
        rewrites: what clients may do to a message of the policy.
    """

    def __init__(self, policy: Policy, rewrites: Collection[str]) -> None:
        self._policy = policy
        self._rewrites = rewrites
        self._calls = 0
        # A request keeps its session alive for as long as it is answered.
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    def session(self) -> Session:
        """Return what answers the next request."""
        self._calls += 1
        session = _Judgement(f"judge-{next(_NUMBERS)}", self._policy, self._rewrites)
        self._sessions.add(session)
        return session

    def take_calls(self) -> int:
        """Return how many requests came since this was asked last."""
        calls, self._calls = self._calls, 0
        return calls

    async def close(self) -> None:
        """Answer nothing any more, and wait for what is being sampled."""
        for session in list(self._sessions):
            await session.close()


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

    async def shown(self, request: ChatRequest) -> Shown:
        """Return what writes the conversation of a request."""
        return await self._shared.processors.of(request)

    def note(self, request: ChatRequest) -> None:
        """See what a request asks for that it does not get."""
        self._shared.notes.see(request)

    async def sample(self, request: SampleRequest, chat: ChatRequest) -> Sample:
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


class _Judgement(Session):
    """One request of a judge, and its answer."""

    def _out_of(self, reason: StopReason, why: str) -> Refusal:
        # NeMo Gym makes an empty answer of "maximum context length", and a judge that says nothing
        # scores 0: a plain refusal fails the rollout instead.
        return _refused(why)


def _refused(why: str) -> Refusal:
    return Refusal(f"a request that names no rollout is not answered: {why}", code="not_answered")
