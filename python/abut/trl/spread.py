"""Spreads what TRL computed for rollouts over their rows, and numbers the rows."""

from typing import Any

import torch

from abut.trl.pieces import ROW, WEIGHT
from abut.trl.row_batch import RowBatch
from abut.trl.row_metrics import log_ratios, warn_of_masked_rows
from abut.trl.row_weights import trained_mask, weights_of
from abut.trl.version import COUNTS_ALL_ROWS, trl_version


def spread(trainer: Any, batch: RowBatch, output: dict[str, Any]) -> dict[str, Any]:
    """Return TRL's output with the columns of rows; `advantages` are those of rollouts until here.

    Args:
        trainer: a `GRPOTrainer`, in training or in evaluation.
        batch: the rows that it got.
        output: of its `_generate_and_score_completions`.
    """
    ids = output["prompt_ids"]
    places, padding = batch.places, len(ids) - len(batch.places)
    output[ROW] = torch.tensor([*range(len(places)), *[-1] * padding], device=ids.device)
    trained = trained_mask(output).sum(1)
    is_masked = getattr(trainer, "vllm_importance_sampling_mode", None) == "sequence_mask"
    ratios = output.get("importance_sampling_ratio")
    if trainer.model.training and is_masked and ratios is not None:
        warn_of_masked_rows(ratios[: len(places), 0], trained[: len(places)])
    if not batch.has_others:
        return output
    rollout_of = torch.tensor(
        [*(place.rollout for place in places), *[-1] * padding], device=ids.device
    )
    weights = weights_of(trainer.loss_type, trained, rollout_of, len(batch.rollouts))
    advantages = output["advantages"][rollout_of.clamp(min=0)]
    advantages = torch.where(rollout_of >= 0, advantages, torch.zeros_like(advantages))
    if trainer.beta:
        # A KL term has no advantage that could be weighed, so gradients are.
        output[WEIGHT] = weights.to(advantages.dtype)
    else:
        advantages = (advantages * weights).to(advantages.dtype)
    output["advantages"] = advantages
    batch.weights = weights[: len(places)].tolist()
    if trl_version() < COUNTS_ALL_ROWS:
        own = sum(sum(mask) for mask in batch.other_masks)
        others = torch.tensor(own, device=ids.device)
        counted = output["num_items_in_batch"]
        output["num_items_in_batch"] = counted + trainer.accelerator.gather(others).sum()
    if ratios is not None and ratios.shape[1] == 1:
        log_ratios(trainer, ratios[: len(places), 0])
    return output
