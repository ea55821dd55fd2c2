"""Decoders, trl-env's samplers of single turns.

Invariant: a turn is sampled with the trainer's temperature, or the batch is refused, because TRL
recomputes the logprobs with its own temperature.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from abut.samplers.sampler import Sample, SampleRequest


class RolloutDecoder(Protocol):
    """Samples turns, one after the other."""

    def generate(self, input_ids: list[int]) -> tuple[list[int], list[float]]:
        """Return the ids of a turn, each with its logprob in the distribution it was drawn from."""
        ...


class RolloutDecoderFactory(Protocol):
    """Makes a decoder for each batch."""

    def make_decoder(self, trainer: Any) -> RolloutDecoder:
        """Return a decoder with the trainer's current weights."""
        ...


class DecoderSampler:
    """A `BatchSampler` that uses the user's own decoder, one turn at a time."""

    def __init__(self) -> None:
        self.decoder: RolloutDecoder | None = None

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Sample one turn for each request, in order."""
        assert self.decoder is not None, "set for each batch"
        samples = []
        for request in requests:
            ids, logprobs = self.decoder.generate(request.prompt_ids.tolist())
            # A decoder does not have a budget, so tokens beyond it are cut and not part of this
            # row.
            cut = len(ids) > request.max_tokens
            ids, logprobs = ids[: request.max_tokens], logprobs[: request.max_tokens]
            stopped = not cut and bool(ids) and ids[-1] in request.stop_token_ids
            samples.append(
                Sample(
                    np.asarray(ids, dtype=np.int64),
                    np.asarray(logprobs, dtype=np.float32),
                    "stop" if stopped else "length",
                )
            )
        return samples


class DecoderSettings:
    """The settings that trl-env's two factories share; the trainer's own sampler does the rest."""

    def __init__(
        self, temperature: float, eos_token_set: set[int], max_completion_length: int
    ) -> None:
        self.temperature = temperature
        self.eos_token_set = eos_token_set
        self.max_completion_length = max_completion_length

    def make_decoder(self, trainer: Any) -> RolloutDecoder:
        """Return a decoder for `rollout`, if possible.

        Raises:
            TypeError: these settings are for the trainer's own engine.
        """
        raise TypeError(
            f"{type(self).__name__} cannot make a decoder, because make_rollout_func samples "
            "with the trainer's engine\n"
            "hint: for rollout(…), use TransformerDecoderFactory(…).make_decoder(trainer), or "
            "your own object with generate(input_ids)"
        )

    def check_trainer(self, trainer: Any) -> None:
        """Refuse a trainer that would compute different logprobs.

        Raises:
            ValueError: the temperatures differ.
        """
        if self.temperature != trainer.temperature:
            raise ValueError(
                f"{type(self).__name__}(temperature={self.temperature:g}), but the trainer "
                f"computes logprobs with temperature={trainer.temperature:g}\n"
                f"hint: set GRPOConfig(temperature={self.temperature:g})"
            )
