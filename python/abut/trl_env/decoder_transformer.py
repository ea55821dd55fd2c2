"""Sampling with the trainer's model, as trl-env names it."""

from typing import Any

from abut.trl_env.decoder import DecoderSettings


class TransformerDecoderFactory(DecoderSettings):
    """Samples with the trainer's model in this process, all rollouts that wait in one batch.

    Args:
        temperature: that of the trainer.
        eos_token_set: ids that end a turn, besides the template's own.
        max_completion_length: most tokens of one turn.
    """

    def check_trainer(self, trainer: Any) -> None:
        """Refuse a trainer that samples otherwise.

        Raises:
            ValueError: its temperature is another one, or it has vLLM.
        """
        super().check_trainer(trainer)
        if trainer.use_vllm:
            raise ValueError(
                "TransformerDecoderFactory samples with the trainer's model, but the trainer has "
                "use_vllm=True\nhint: VLLMDecoderFactory, or GRPOConfig(use_vllm=False)"
            )
