"""The policy of a gateway without a trainer: its sampler, with each client's settings.

Invariant: a sample is drawn with the sampling settings of its own request. For a setting that the
request leaves out, the sampler's own value is used.
"""

import asyncio
import dataclasses
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abut._native import Tokenizer
from abut.errors import TemplateError
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.policy import ClientWarnings
from abut.gateway.ledger.refusal import Refusal, limit_reached
from abut.gateway.ledger.writer import Writer, Writers, image_roles
from abut.pretrained import (
    generation_stop_ids,
    load_hf_processor,
    load_hf_tokenizer,
    tokenizer_of,
)
from abut.processor import PartsProcessor
from abut.rollout.budget import Budget
from abut.rollout.config import RolloutConfig
from abut.rollout.conversation import Conversation
from abut.rollout.rollout import StopReason
from abut.samplers.sampler import ImageSampler, Sample, Sampler, SampleRequest
from abut.template.image_processor import ImageProcessor
from abut.template.processor import ChatTemplateProcessor

logger = logging.getLogger(__name__)

_KEPT = 256


@dataclass(frozen=True)
class SharedSampler:
    """The sampler that all rollouts share, with its tokenizer and limits.

    Attributes:
        sampler: entered on the loop of the gateway.
        slots: limits the requests in flight.
        stop_token_ids: tokens that end a turn, besides those of the template.
        image_roles: see `image_roles`.
        source: the tokenizer's name, for records.
        secret: seeds the samples for which the client does not give a seed.
    """

    tokenizer: Tokenizer
    writers: Writers
    sampler: Sampler
    config: RolloutConfig
    warnings: ClientWarnings
    slots: asyncio.Semaphore
    stop_token_ids: tuple[int, ...] = ()
    image_roles: Collection[str] = ()
    source: str | None = None
    secret: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
    settings: dict[str, Sampler] = dataclasses.field(default_factory=dict)
    """The samplers with a client's settings, by these settings."""

    def with_settings(self, settings: Mapping[str, Any]) -> Sampler:
        """Return the sampler with a client's settings.

        Raises:
            Refusal: the sampler does not take these settings.
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
            if len(self.settings) >= _KEPT:  # only if a client draws its settings at random
                self.settings.clear()
            self.settings[key] = made
        return self.settings[key]


class ClientPolicy:
    """The policy of one rollout.

    Attributes:
        error: why the rollout cannot continue; None if it can.
    """

    def __init__(
        self, shared: SharedSampler, rollout_id: str, budget: Callable[[], Budget]
    ) -> None:
        self.tokenizer = shared.tokenizer
        self.max_turns, self.max_calls = shared.config.max_turns, shared.config.max_calls
        self.max_rollout_tokens = shared.config.max_rollout_tokens
        self.error: str | None = None
        self._shared = shared
        self._rollout_id = rollout_id
        self._budget = budget

    def conversation(self, processor: PartsProcessor) -> Conversation:
        """Return an empty conversation."""
        stops = (*processor.stop_token_ids, *self._shared.stop_token_ids)
        return Conversation(
            self.tokenizer,
            processor,
            stop_token_ids=tuple(dict.fromkeys(stops)),
            budget=self.budget(),
            streams=self._shared.config.streams,
        )

    def budget(self) -> Budget:
        """Return the token limits of a conversation."""
        return self._budget()

    def seed(self, number: int) -> int:
        """Return the seed of a call whose request does not have one."""
        named = f"{self._shared.secret}/{self._rollout_id}/{number}".encode()
        return int.from_bytes(hashlib.blake2b(named, digest_size=4).digest(), "big") >> 1

    async def writer_of(self, request: AgentRequest) -> Writer:
        """Return the writer of a request's conversation."""
        self._shared.with_settings(
            request.sampling
        )  # so that settings are refused before anything is written
        return await self._shared.writers.of(request)

    def note(self, request: AgentRequest) -> None:
        """Warn about fields of a request that are not followed."""
        self._shared.warnings.warn_about(request)

    async def sample(self, request: SampleRequest, asked: AgentRequest) -> Sample:
        """Draw one turn with the client's settings.

        Raises:
            Refusal: the time limit has passed.
        """
        seed = asked.sampling.get("seed")
        if seed is not None:
            request = dataclasses.replace(request, seed=seed)
        seconds = self._shared.config.turn_timeout_s
        try:
            async with asyncio.timeout(seconds), self._shared.slots:
                return await self._shared.with_settings(asked.sampling).sample(request)
        except TimeoutError:
            why = f"the turn was not sampled within turn_timeout_s={seconds:g}"
            raise limit_reached(why, reason=StopReason.DEADLINE) from None

    def failed(self, error: Exception) -> None:
        """Note that this rollout cannot continue."""
        self.error = f"{type(error).__name__}: {error}"
        logger.error("rollout %s failed: %s", self._rollout_id, self.error)


def shared_sampler(sampler: Sampler, tokenizer: Any, config: RolloutConfig) -> SharedSampler:
    """Return the sampler of a gateway without a trainer.

    Raises:
        TypeError: the sampler does not draw one turn for each request.
        ValueError: there is no tokenizer.
    """
    if not isinstance(sampler, Sampler) or isinstance(sampler, type):
        raise TypeError(
            f"sampler={type(sampler).__name__}: must have a method `async sample(request)`\n"
            "hint: use VLLMServerSampler(url); a model in this process cannot serve a gateway "
            "without a trainer"
        )
    if tokenizer is None:
        raise ValueError(
            "sampler= needs tokenizer=\nhint: pass the name of the sampler's model as tokenizer="
        )
    named = isinstance(tokenizer, str | os.PathLike)
    hf_tokenizer = load_hf_tokenizer(tokenizer) if named else tokenizer_of(tokenizer)
    native = Tokenizer.from_pretrained(hf_tokenizer)
    stops = generation_stop_ids(tokenizer, vocab_size=native.vocab_size) if named else []
    processor = _processor_of(hf_tokenizer, tokenizer, sampler)

    def made(tools: Sequence[Any] | None, variables: Mapping[str, Any]) -> PartsProcessor:
        return processor.with_tools(tools, **variables) if tools or variables else processor

    takes_settings = callable(getattr(sampler, "with_settings", None))
    return SharedSampler(
        native,
        Writers(made),
        sampler,
        config,
        ClientWarnings(None if takes_settings else {}),
        asyncio.Semaphore(config.max_requests),
        stop_token_ids=tuple(stops),
        image_roles=image_roles(processor, sampled=_takes_images(sampler)),
        source=os.fspath(tokenizer) if named else getattr(hf_tokenizer, "name_or_path", None),
    )


def _takes_images(sampler: Sampler) -> bool:
    return isinstance(sampler, ImageSampler) and sampler.takes_images


def _processor_of(hf_tokenizer: Any, source: Any, sampler: Sampler) -> ChatTemplateProcessor:
    """Return the processor of conversations, with images if sampler and model take them.

    Args:
        hf_tokenizer: of the sampler's model.
        source: the tokenizer as it was given, which may be a processor, or the model's name.
        sampler: draws the turns.
    """
    if _takes_images(sampler):
        named = isinstance(source, str | os.PathLike)
        hf_processor = load_hf_processor(source) if named else source
        if getattr(hf_processor, "image_processor", None) is not None:
            try:
                images = ImageProcessor(hf_processor)
                # With its template, which its tokenizer may lack.
                return ChatTemplateProcessor(hf_processor, images=images)
            except TemplateError as error:
                logger.warning("the gateway will refuse images: %s", error)
    return ChatTemplateProcessor(hf_tokenizer)
