"""The forward passes of a model in this process: which prompts and which ranks share one.

Invariant: a token is sampled in the context that is recorded. A model that ignores the attention
mask (RWKV and other recurrent models) reads the padding of a batch as text, which changes the
logprobs of RWKV with random weights by several nats. The RWKV of transformers is wrong in any
batch, because its state mixes the rows.

Ranks that share a sharded model must make the same number of passes, because each pass gathers the
weights from all ranks, and a missing rank would leave the others waiting forever. So while any rank
has turns to sample, a rank without turns passes a dummy row through the model.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

_MOST_NATS = 0.01
_TOKENS = 6


class Batches(StrEnum):
    """Which prompts a model can sample together."""

    ANY = "prompts of any lengths"
    EQUAL = "prompts of equal length only"
    ONE = "one prompt at a time"


def batches_of(model: Any, pad_token_id: int, *, in_step: bool = False) -> tuple[Batches, float]:
    """Try which prompts a model can sample together, with a few tokens.

    Args:
        model: a plain causal language model, in eval mode.
        pad_token_id: fills the left of shorter prompts.
        in_step: whether all ranks do this together, with a sharded model.

    Returns:
        The largest kind of batch that is exact, and the difference in nats of larger ones.
    """
    import torch

    tokens = torch.arange(1, 1 + 3 * _TOKENS, device=model.device) % _vocabulary(model)
    prompt, other = tokens[:_TOKENS], tokens[_TOKENS:]
    padding = torch.full_like(prompt, pad_token_id)
    mask = torch.ones_like(other)[None].repeat(2, 1)
    mask[0, :_TOKENS] = 0

    def apart(ids: Any, mask: Any) -> float:
        return _nats(alone, next_logits(model, ids, mask, pad_token_id, in_step), model.dtype)

    one = prompt[None]
    alone = next_logits(model, one, torch.ones_like(one), pad_token_id, in_step)
    # Try both in any case, because ranks in step must make the same passes.
    padded = apart(torch.stack([torch.cat([padding, prompt]), other]), mask)
    equal = apart(torch.stack([prompt, other[:_TOKENS]]), mask[:, _TOKENS:])
    if equal > _MOST_NATS:
        return Batches.ONE, equal
    return (Batches.EQUAL if padded > _MOST_NATS else Batches.ANY), padded


def next_logits(
    model: Any,
    ids: Any,
    mask: Any,
    pad_token_id: int,
    in_step: bool,
    inputs: Mapping[str, Any] | None = None,
) -> Any:
    """Return `(2, V)` float32: the logits of the first row's next two tokens, greedily sampled."""
    import torch
    from transformers import GenerationConfig

    config = GenerationConfig(
        do_sample=False,
        # A None here would be replaced by the model's own generation config.
        num_beams=1,
        repetition_penalty=1.0,
        temperature=1.0,
        top_k=50,
        top_p=1.0,
        min_new_tokens=2,
        max_new_tokens=2,
        pad_token_id=pad_token_id,
        output_logits=True,
        return_dict_in_generate=True,
        disable_compile=True,
    )
    with torch.no_grad():
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            **(inputs or {}),
            generation_config=config,
            synced_gpus=in_step,
        )
    return torch.stack([logits[0] for logits in output.logits]).float()


def _nats(alone: Any, batched: Any, dtype: Any) -> float:
    """Return the largest difference of logprobs, minus what rounding in the model's dtype explains.

    A logit of 20 in bfloat16 is accurate to 0.1. NaN, from a model that padding breaks, is
    infinite.
    """
    import torch

    apart = (alone.log_softmax(-1) - batched.log_softmax(-1)).abs().max().item()
    rounding = 4 * torch.finfo(dtype).eps * alone.abs().max().item()
    return max(0.0, apart - rounding) if apart == apart else float("inf")


def _vocabulary(model: Any) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def is_sharded(model: Any) -> bool:
    """Return whether each forward pass of a model needs all ranks.

    This is the case with FSDP2 (`fully_shard`), FSDP1, and DeepSpeed ZeRO-3 if the weights are not
    gathered for sampling (`ds3_gather_for_generation=False`).
    """
    import torch

    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    if distributed.get_world_size() == 1:
        return False
    from torch.distributed import fsdp

    kinds = tuple(
        getattr(fsdp, name)
        for name in ("FullyShardedDataParallel", "FSDPModule")  # the second since torch 2.6
        if hasattr(fsdp, name)
    )
    if any(isinstance(module, kinds) for module in model.modules()):
        return True
    # DeepSpeed gives each parameter that it partitions a status; gathered ones are AVAILABLE.
    states = (getattr(parameter, "ds_status", None) for parameter in model.parameters())
    return any(getattr(state, "name", None) == "NOT_AVAILABLE" for state in states)


def any_rank_samples(samples: bool, device: Any) -> bool:
    """Return whether any rank has something to sample; every rank calls this before each pass.

    Args:
        samples: whether this rank has.
        device: of the tensors that the ranks exchange.
    """
    import torch

    flag = torch.tensor([int(samples)], device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())
