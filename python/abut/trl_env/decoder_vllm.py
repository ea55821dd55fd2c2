"""Sampling with vLLM, under trl-env's names."""

import warnings
from typing import Any

from abut.trl_env.decoder import DecoderSettings


class VLLMDecoderFactory(DecoderSettings):
    """Samples with the trainer's vLLM, in its process or on its server.

    trl-env starts its own engine and sets the trainer to `use_vllm=False`. Here the engine is the
    trainer's, so the trainer also corrects for the difference between vLLM's logprobs and its own.

    Args:
        temperature: the trainer's temperature.
        eos_token_set: ids that end a turn, in addition to those of the template.
        max_completion_length: the most tokens of one turn.
        gpu_memory_utilization: the trainer's setting.
        enable_sleep_mode: the trainer's setting.
    """

    def __init__(
        self,
        temperature: float,
        eos_token_set: set[int],
        max_completion_length: int,
        gpu_memory_utilization: float = 0.5,
        enable_sleep_mode: bool = True,
    ) -> None:
        super().__init__(temperature, eos_token_set, max_completion_length)
        self.gpu_memory_utilization = gpu_memory_utilization
        self.enable_sleep_mode = enable_sleep_mode

    def check_trainer(self, trainer: Any) -> None:
        """Refuse a trainer without vLLM; warn if its engine has other settings.

        Raises:
            ValueError: the temperatures differ, or the trainer does not use vLLM.
        """
        super().check_trainer(trainer)
        settings = {
            "vllm_gpu_memory_utilization": self.gpu_memory_utilization,
            "vllm_enable_sleep_mode": self.enable_sleep_mode,
        }
        said = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        if not trainer.use_vllm:
            raise ValueError(
                "VLLMDecoderFactory samples with the trainer's vLLM, but the trainer has "
                "use_vllm=False\n"
                f'hint: set GRPOConfig(use_vllm=True, vllm_mode="colocate", {said})'
            )
        theirs = {name: getattr(trainer.args, name, None) for name in settings}
        if trainer.vllm_mode == "colocate" and theirs != settings:
            warnings.warn(
                f"VLLMDecoderFactory has {settings}, but the trainer's vLLM has {theirs}\n"
                f"hint: set GRPOConfig({said})",
                stacklevel=3,
            )
