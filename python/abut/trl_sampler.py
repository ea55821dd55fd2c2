"""Which sampler the settings of a `GRPOTrainer` ask for.

Invariant: it samples what TRL would sample itself: the trainer's own weights, under all of the
trainer's sampling settings.
"""

from typing import Any

from abut.sampler import BatchSampler, Sampler

# From here on TRL asks `vllm serve`; before, a server of its own.
_ASKS_VLLM = (1, 11)


def sampler_of(
    trainer: Any, hf_tokenizer: Any, trl_version: tuple[int, ...]
) -> Sampler | BatchSampler:
    """Return the sampler for `sampler="auto"`.

    Raises:
        ValueError: with vLLM in the trainer's own process.
    """
    if trainer.use_vllm and trainer.vllm_mode != "server":
        raise ValueError(
            f"sampler='auto' cannot ask vLLM in vllm_mode={trainer.vllm_mode!r}\n"
            "hint: GRPOConfig(vllm_mode='server') or use_vllm=False, or pass a sampler of your own"
        )
    settings = {
        "temperature": trainer.temperature,
        "top_k": trainer.top_k,
        "top_p": trainer.top_p,
        "min_p": trainer.min_p,
        "repetition_penalty": trainer.repetition_penalty,
        "generation_kwargs": trainer.args.generation_kwargs,
    }
    if trainer.use_vllm:
        return _server(trainer.args, settings, trl_version)
    return _in_process(trainer, hf_tokenizer, settings)


def _in_process(trainer: Any, hf_tokenizer: Any, settings: dict[str, Any]) -> BatchSampler:
    from trl.models import unwrap_model_for_generation

    from abut.samplers.transformers import TransformersSampler

    return TransformersSampler(
        trainer.model,
        pad_token_id=hf_tokenizer.pad_token_id,
        unwrap=lambda: unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
        ),
        **settings,
    )


def _server(args: Any, settings: dict[str, Any], trl_version: tuple[int, ...]) -> Sampler:
    """The server that TRL sends the weights; every rank asks it for its own rollouts."""
    base_url = args.vllm_server_base_url
    if base_url is None:
        base_url = f"http://{args.vllm_server_host}:{args.vllm_server_port}"
    # A server that is started again would sample from other weights than the trainer's.
    settings |= {"give_up_s": args.vllm_server_timeout, "on_restart": "raise"}
    if trl_version < _ASKS_VLLM:
        from abut.samplers.trl_server import TRLServerSampler

        return TRLServerSampler(base_url, **settings)
    from abut.samplers.vllm import VLLMServerSampler

    return VLLMServerSampler(base_url, **settings)
