"""Spreads what TRL computed for rollouts over their rows, and numbers the rows."""

from typing import Any

import torch

from abut.trl.rows.row_batch import ROW, WEIGHT, RowBatch
from abut.trl.rows.row_credit import advantages_of_rows
from abut.trl.rows.row_metrics import log_ratios, warn_of_masked_rows
from abut.trl.rows.row_weights import trained_mask, weights_of
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
    output[ROW] = torch.tensor(batch.numbers, device=ids.device)
    if not trainer.model.training:
        return output
    trained = trained_mask(output).sum(1)
    ratios = output.get("importance_sampling_ratio")
    if ratios is not None and trainer.vllm_importance_sampling_mode == "sequence_mask":
        warn_of_masked_rows(ratios[: len(places), 0], trained[: len(places)])
    if not (batch.has_credit or batch.has_others):
        return output
    rollout_of = torch.tensor(
        [*(place.rollout for place in places), *[-1] * padding], device=ids.device
    )
    advantages = _advantages(trainer, batch, output, rollout_of)
    if batch.has_others:
        weights = weights_of(trainer.loss_type, trained, rollout_of, len(batch.rollouts))
        batch.weights = weights[: len(places)].tolist()
        if trainer.beta:
            # A KL term has no advantage that could be weighed, so gradients are.
            output[WEIGHT] = weights.to(advantages.dtype)
        else:
            of_rows = weights.view(-1, *[1] * (advantages.ndim - 1))
            advantages = (advantages * of_rows).to(advantages.dtype)
        if trl_version() < COUNTS_ALL_ROWS:
            masks = batch.lists["env_mask"][len(batch.rollouts) :]
            own = torch.tensor(sum(map(sum, masks)), device=ids.device)
            others = trainer.accelerator.gather(own).sum()
            output["num_items_in_batch"] = output["num_items_in_batch"] + others
        if ratios is not None and ratios.shape[1] == 1:
            log_ratios(trainer, ratios[: len(places), 0])
    output["advantages"] = advantages
    return output


def _advantages(
    trainer: Any, batch: RowBatch, output: dict[str, Any], rollout_of: torch.Tensor
) -> torch.Tensor:
    """Return `(N,)`, or `(N, T)` where tokens of a row differ; 0 for padding."""
    of_rollouts = output["advantages"]
    if not batch.has_credit:
        spread_out = of_rollouts[rollout_of.clamp(min=0)]
        return torch.where(rollout_of >= 0, spread_out, torch.zeros_like(spread_out))
    of_rows = advantages_of_rows(trainer, batch, of_rollouts.tolist())
    if batch.credit is None:  # a conversation has one advantage
        firsts = [float(tokens[0]) if len(tokens) else 0.0 for tokens in of_rows]
        firsts += [0.0] * (len(rollout_of) - len(firsts))
        return torch.tensor(firsts, dtype=of_rollouts.dtype, device=of_rollouts.device)
    found = torch.zeros(output["completion_ids"].shape, dtype=of_rollouts.dtype)
    for row, numbers in enumerate(of_rows):
        mask = torch.tensor(batch.lists["env_mask"][row], dtype=torch.bool)
        found[row, : len(mask)][mask] = torch.from_numpy(numbers).to(found.dtype)
    return found.to(of_rollouts.device)
