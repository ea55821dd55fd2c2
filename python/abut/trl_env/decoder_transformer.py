"""Sampling with the trainer's model, under trl-env's names."""

import random
from typing import Any

import numpy as np

from abut.samplers.sampler import SampleRequest
from abut.trl_env.decoder import DecoderSettings


class TransformerDecoderFactory(DecoderSettings):
    """Samples with the trainer's model in this process, all rollouts that wait in one batch.

    Args:
        temperature: the trainer's temperature.
        eos_token_set: ids that end a turn, in addition to those of the template.
        max_completion_length: the most tokens of one turn.
    """

    def make_decoder(self, trainer: Any) -> "TransformerDecoder":
        """Return a decoder for `rollout`; only `trainer.model` is used."""
        return TransformerDecoder(self, trainer.model)

    def check_trainer(self, trainer: Any) -> None:
        """Refuse a trainer that samples differently.

        Raises:
            ValueError: the temperatures differ, or the trainer uses vLLM.
        """
        super().check_trainer(trainer)
        if trainer.use_vllm:
            raise ValueError(
                "TransformerDecoderFactory samples with the trainer's model, but the trainer has "
                "use_vllm=True\n"
                "hint: use VLLMDecoderFactory, or set GRPOConfig(use_vllm=False)"
            )


class TransformerDecoder:
    """Samples one turn at a time with a model in this process."""

    def __init__(self, settings: TransformerDecoderFactory, model: Any) -> None:
        from abut.samplers.transformers import TransformersSampler

        self._settings = settings
        self._stop_token_ids = tuple(sorted(settings.eos_token_set))
        # One prompt at a time: nothing is filled up.
        self._sampler = TransformersSampler(
            model, pad_token_id=self._stop_token_ids[0], temperature=settings.temperature
        )

    def generate(self, input_ids: list[int]) -> tuple[list[int], list[float]]:
        """Return the ids of a turn, each with its logprob in the distribution it was drawn from."""
        request = SampleRequest(
            prompt_ids=np.asarray(input_ids, dtype=np.int64),
            max_tokens=self._settings.max_completion_length,
            stop_token_ids=self._stop_token_ids,
            seed=random.getrandbits(63),
            rollout_id="rollout",
            turn=0,
        )
        (sample,) = self._sampler.sample_batch([request])
        return np.asarray(sample.ids).tolist(), np.asarray(sample.logprobs).tolist()
