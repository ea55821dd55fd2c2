"""What a session asks, where no trainer plays: the sampler itself, by the client's settings.

Invariant: a sample is drawn by what its own request says of temperature and the like; what it
leaves out is as the sampler was made.
"""

import asyncio
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from abut._native import Tokenizer
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.policy import ClientWarnings
from abut.gateway.ledger.refusal import Refusal, over
from abut.gateway.ledger.writer import Writer, Writers
from abut.processor import PartsProcessor
from abut.rollout.config import RolloutConfig
from abut.rollout.conversation import Budget, Conversation
from abut.rollout.rollout import StopReason
from abut.samplers.sampler import Sample, Sampler, SampleRequest

logger = logging.getLogger(__name__)

_KEPT = 256


@dataclass(frozen=True)
class SharedSampler:
    """The sampler that all rollouts ask, and what they share.

    Attributes:
        sampler: entered on the loop of the gateway.
        slots: so many requests at once.
        stop_token_ids: end a turn besides those of the template.
        secret: from which the seeds of samples follow that a client gives none.
    """

    tokenizer: Tokenizer
    processors: Writers
    sampler: Sampler
    config: RolloutConfig
    notes: ClientWarnings
    slots: asyncio.Semaphore
    stop_token_ids: tuple[int, ...] = ()
    secret: str = ""
    settings: dict[str, Sampler] = dataclasses.field(default_factory=dict)
    """Samplers by the settings that a client gave."""

    def by(self, settings: Mapping[str, Any]) -> Sampler:
        """The sampler with a client's settings.

        Raises:
            Refusal: it cannot sample so.
        """
        settings = {name: value for name, value in settings.items() if name != "seed"}
        changed: Callable[..., Sampler] | None = getattr(self.sampler, "with_settings", None)
        if not settings or changed is None:
            return self.sampler
        key = json.dumps(settings, sort_keys=True)
        if key not in self.settings:
            try:
                made = changed(**settings)
            except (TypeError, ValueError) as error:
                raise Refusal(str(error), param=next(iter(settings))) from error
            if len(self.settings) >= _KEPT:
                self.settings.clear()
            self.settings[key] = made
        return self.settings[key]


class ClientPolicy:
    """The policy of one rollout.

    Attributes:
        error: why it cannot go on, where that is so.
    """

    def __init__(
        self, upstream: SharedSampler, rollout_id: str, budget: Callable[[], Budget]
    ) -> None:
        self.tokenizer = upstream.tokenizer
        self.max_turns = upstream.config.max_turns
        self.error: str | None = None
        self._upstream = upstream
        self._rollout_id = rollout_id
        self._budget = budget

    def conversation(self, processor: PartsProcessor) -> Conversation:
        """One in which nothing is said yet."""
        stops = (*processor.stop_token_ids, *self._upstream.stop_token_ids)
        return Conversation(
            self.tokenizer,
            processor,
            stop_token_ids=tuple(dict.fromkeys(stops)),
            budget=self.budget(),
        )

    def budget(self) -> Budget:
        """What a conversation may have."""
        return self._budget()

    def seed(self, number: int) -> int:
        """That of the sample of one call, where its request has none."""
        named = f"{self._upstream.secret}/{self._rollout_id}/{number}".encode()
        return int.from_bytes(hashlib.blake2b(named, digest_size=4).digest(), "big") >> 1

    async def writer_of(self, request: AgentRequest) -> Writer:
        """What writes the conversation of a request."""
        self._upstream.by(request.sampling)  # refused before anything is written
        return await self._upstream.processors.of(request)

    def note(self, request: AgentRequest) -> None:
        """See what a request asks for that it does not get."""
        self._upstream.notes.see(request)

    async def sample(self, request: SampleRequest, chat: AgentRequest) -> Sample:
        """Draw one turn by the client's settings.

        Raises:
            Refusal: not in the time that there is.
        """
        seed = chat.sampling.get("seed")
        if seed is not None:
            request = dataclasses.replace(request, seed=seed)
        seconds = self._upstream.config.turn_timeout_s
        try:
            async with asyncio.timeout(seconds), self._upstream.slots:
                return await self._upstream.by(chat.sampling).sample(request)
        except TimeoutError:
            raise over(f"turn_timeout_s={seconds:g} is over", reason=StopReason.DEADLINE) from None

    def failed(self, error: Exception) -> None:
        """Note that this rollout cannot go on."""
        self.error = f"{type(error).__name__}: {error}"
        logger.error("rollout %s ends: %s", self._rollout_id, self.error)
