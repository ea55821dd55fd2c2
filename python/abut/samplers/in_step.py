"""Ranks that share the forward passes of one model, and so must make equally many.

Invariant: while any rank has turns to sample, every rank makes the same passes; a rank that has
none passes a dummy through. Sharded weights are gathered in each pass by all ranks together, so a
rank that made one pass fewer would leave the others waiting for ever.
"""

from typing import Any


def is_sharded(model: Any) -> bool:
    """Return whether each forward pass of a model takes all ranks.

    That is so under FSDP2 (`fully_shard`), FSDP1, and DeepSpeed ZeRO-3 where the weights are not
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
        device: where the ranks' collectives take tensors.
    """
    import torch

    flag = torch.tensor([int(samples)], device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())
