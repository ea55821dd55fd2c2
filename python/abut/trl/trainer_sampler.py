"""The sampler that follows from a trainer's settings.

Invariant: it samples as TRL itself would: from the trainer's weights, with all of its sampling
settings.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from abut._native import Tokenizer
from abut.samplers.image_inputs import ImageInputs
from abut.samplers.in_process import StreamSampler
from abut.samplers.sampler import BatchSampler, Sampler
from abut.samplers.settings import NAMED, settings_for_clients

# This and later versions of TRL use `vllm serve`; earlier ones use their own server.
_ASKS_VLLM = (1, 11)
# This and later versions of TRL wake an engine with the trainer's weights, earlier ones with those
# on disk.
_WAKES_WITH_WEIGHTS = (1, 10)


def sampler_of(
    trainer: Any,
    hf_tokenizer: Any,
    trl_version: tuple[int, ...],
    images: ImageInputs | None = None,
) -> Sampler | BatchSampler | StreamSampler:
    """Return the sampler for `sampler="auto"`.

    Args:
        trainer: the trainer with the settings.
        hf_tokenizer: the trainer's tokenizer.
        trl_version: the installed version of TRL.
        images: computes image inputs for a model in this process.

    Raises:
        ValueError: TRL is too old for sleep mode; or the settings do not allow learning.
    """
    settings = {name: getattr(trainer, name) for name in NAMED}
    settings["generation_kwargs"] = trainer.args.generation_kwargs
    if not trainer.use_vllm:
        return _in_process(trainer, hf_tokenizer, images, settings)
    regex = getattr(trainer.args, "vllm_structured_outputs_regex", None)
    if regex is not None:
        more = settings["generation_kwargs"] or {}
        settings["generation_kwargs"] = {**more, "structured_outputs": {"regex": regex}}
    if trainer.vllm_mode == "colocate":
        return _colocate(trainer.vllm_generation, settings, trl_version)
    return _server(trainer.args, settings, trl_version)


def client_settings(trainer: Any) -> dict[str, Any]:
    """Return the trainer's sampling settings, even neutral ones, by their names in chats."""
    settings = {name: getattr(trainer, name) for name in NAMED}
    more = trainer.args.generation_kwargs
    return settings_for_clients({**settings, "generation_kwargs": more})


def async_client_settings(args: Any) -> dict[str, Any]:
    """Return the sampling settings of an `AsyncGRPOConfig`, by the names of chat clients."""
    return settings_for_clients({name: getattr(args, name) for name in NAMED})


def async_sampler_of(
    args: Any, base_urls: str | Sequence[str] | None, adapter: Callable[[], str]
) -> Sampler:
    """Return a sampler for the servers to which an `AsyncGRPOTrainer` sends its weights.

    Args:
        args: its `AsyncGRPOConfig`.
        base_urls: their addresses; None takes them from `args`.
        adapter: returns the name under which the trainer has published its current adapter.
    """
    from abut.samplers.vllm import VLLMServerSampler

    sampler = VLLMServerSampler(
        base_urls or args.vllm_server_base_url,
        give_up_s=args.vllm_server_timeout,
        on_restart="raise",
        **{name: getattr(args, name) for name in NAMED},
    )
    sampler.ask_for_adapters(adapter)
    return sampler


def _in_process(
    trainer: Any, hf_tokenizer: Any, images: ImageInputs | None, settings: dict[str, Any]
) -> BatchSampler:
    from abut.samplers.transformers import TransformersSampler

    return TransformersSampler(
        trainer.model,
        pad_token_id=hf_tokenizer.pad_token_id,
        tokenizer=Tokenizer.from_pretrained(hf_tokenizer),
        images=images,
        unwrap=lambda: _plain_model(trainer),
        **settings,
    )


@contextmanager
def _plain_model(trainer: Any) -> Iterator[Any]:
    """Yield the model in the form in which TRL generates with it."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from trl.models import unwrap_model_for_generation

    wrapped = trainer.model_wrapped
    whole_root: AbstractContextManager[Any] = nullcontext()
    if isinstance(wrapped, FullyShardedDataParallel):
        # `generate` calls the forward of the module inside, and nothing would gather the root's
        # own weights (embeddings, head); those of the layers are gathered in their own forward.
        whole_root = FullyShardedDataParallel.summon_full_params(wrapped, recurse=False)
    plain = unwrap_model_for_generation(
        wrapped,
        trainer.accelerator,
        gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
    )
    with plain as model, whole_root:
        yield model


def _colocate(
    generation: Any, settings: dict[str, Any], trl_version: tuple[int, ...]
) -> StreamSampler:
    """Return a sampler for the engine in this process, which gets the weights before each batch."""
    from abut.samplers.vllm_colocate import VLLMColocateSampler

    if generation.enable_sleep_mode and trl_version < _WAKES_WITH_WEIGHTS:
        raise ValueError(
            f"vllm_enable_sleep_mode=True with TRL {'.'.join(map(str, trl_version))}: after a "
            "sleep the engine would sample with the weights it was started with\n"
            "hint: pip install 'trl>=1.10', or set vllm_enable_sleep_mode=False"
        )
    return VLLMColocateSampler(
        generation.llm, awake=functools.partial(_awake, generation), **settings
    )


@contextmanager
def _awake(generation: Any) -> Iterator[None]:
    """Do what `VLLMGeneration.generate` does before and after it generates."""
    if generation.tensor_parallel_size > 1:
        # Training's collectives must be over before vLLM's begin: NCCL may hang otherwise.
        generation.accelerator.wait_for_everyone()
    if not generation.enable_sleep_mode:
        yield
        return
    # Sleep has discarded the weights. If TRL has synced them for this batch, they are awake by now.
    if generation._llm_weights_sleeping:
        generation.sync_weights()
    generation.llm.wake_up(tags=["kv_cache"])
    try:
        yield
    finally:
        generation.llm.sleep(level=2)
        generation._llm_weights_sleeping = True


def _server(args: Any, settings: dict[str, Any], trl_version: tuple[int, ...]) -> Sampler:
    """Return a sampler for the server that gets the weights; each rank samples its own rollouts."""
    base_url = args.vllm_server_base_url
    if base_url is None:
        base_url = f"http://{args.vllm_server_host}:{args.vllm_server_port}"
    # A restarted server would not sample from the trainer's weights.
    settings |= {"give_up_s": args.vllm_server_timeout, "on_restart": "raise"}
    if trl_version < _ASKS_VLLM:
        from abut.samplers.trl_server import TRLServerSampler

        return TRLServerSampler(base_url, **settings)
    from abut.samplers.vllm import VLLMServerSampler

    return VLLMServerSampler(base_url, **settings)
