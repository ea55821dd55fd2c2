"""Advantages and weights of rows, from the advantages of rollouts that TRL computed."""

from dataclasses import replace
from typing import Any

import torch

from abut.trl.rows.row_batch import ROW, WEIGHT, RowBatch, RowScoring
from abut.trl.rows.row_credit import CreditedRows, advantages_of_rows
from abut.trl.rows.row_metrics import log_ratios, warn_of_masked_rows
from abut.trl.rows.row_weights import row_weights, trained_mask
from abut.trl.version import COUNTS_ALL_ROWS, trl_version


def spread(trainer: Any, scoring: RowScoring, output: dict[str, Any]) -> RowBatch:
    """Extend TRL's output from rollouts to rows, and return the rows with weights and advantages.

    Args:
        trainer: a `GRPOTrainer`, in training or in evaluation.
        scoring: the rows that TRL got, and the scores of their rollouts.
        output: of its `_generate_and_score_completions`, with `advantages` of rollouts; it gets
            the columns of rows.
    """
    batch, device = scoring.batch, output["prompt_ids"].device
    output[ROW] = torch.tensor(batch.numbers, device=device)
    if not trainer.model.training:
        return batch
    real = len(batch.places)
    trained = trained_mask(output).sum(1)
    ratios = output.get("importance_sampling_ratio")
    if ratios is not None and trainer.vllm_importance_sampling_mode == "sequence_mask":
        warn_of_masked_rows(ratios[:real, 0], trained[:real])
    if scoring.has_credit:
        found = advantages_of_rows(trainer, scoring, output["advantages"].tolist())
        batch = replace(batch, advantages=found.of_turns)
        output["advantages"] = _of_tokens(scoring, output, found)
    elif batch.has_others:
        rollout_of = _rollout_of(batch, device)
        of_rows = output["advantages"][rollout_of.clamp(min=0)]
        output["advantages"] = torch.where(rollout_of >= 0, of_rows, torch.zeros_like(of_rows))
    if not batch.has_others:
        return batch
    if trl_version() < COUNTS_ALL_ROWS:
        own = sum(int(conversation.columns.env_mask.sum()) for conversation in batch.others)
        others = trainer.accelerator.gather(torch.tensor(own, device=device)).sum()
        output["num_items_in_batch"] = output["num_items_in_batch"] + others
    if ratios is not None and ratios.shape[1] == 1:
        log_ratios(trainer, ratios[:real, 0])
    return _weighed(trainer, batch, output, trained)


def _rollout_of(batch: RowBatch, device: Any) -> torch.Tensor:
    """Return the rollout of each row, `(N,)`; -1 for padding."""
    rollouts = [*(place.rollout for place in batch.places), *[-1] * batch.padding_rows]
    return torch.tensor(rollouts, device=device)


def _of_tokens(scoring: RowScoring, output: dict[str, Any], found: CreditedRows) -> torch.Tensor:
    """Return advantages `(N,)`, or `(N, T)` if tokens of a row may differ; 0 for padding."""
    like = output["advantages"]
    if scoring.credit is None:  # a conversation has one advantage
        firsts = [float(tokens[0]) if len(tokens) else 0.0 for tokens in found.of_tokens]
        firsts += [0.0] * scoring.batch.padding_rows
        return torch.tensor(firsts, dtype=like.dtype, device=like.device)
    spread_out = torch.zeros(output["completion_ids"].shape, dtype=like.dtype)
    for row, numbers in enumerate(found.of_tokens):
        mask = torch.tensor(scoring.columns["env_mask"][row], dtype=torch.bool)
        spread_out[row, : len(mask)][mask] = torch.from_numpy(numbers).to(like.dtype)
    return spread_out.to(like.device)


def _weighed(
    trainer: Any, batch: RowBatch, output: dict[str, Any], trained: torch.Tensor
) -> RowBatch:
    """Weigh rows in TRL's output, and return them with their weights.

    Args:
        trainer: a `GRPOTrainer`.
        batch: its rows.
        output: has advantages of rows.
        trained: `(N,)`, the trained tokens of each row.
    """
    rollout_of = _rollout_of(batch, trained.device)
    weights = row_weights(trainer.loss_type, trained, rollout_of, len(batch.rollouts))
    advantages = output["advantages"]
    if trainer.beta:
        # A KL term has no advantage that could be weighed, so gradients are.
        output[WEIGHT] = weights.to(advantages.dtype)
    else:
        of_rows = weights.view(-1, *[1] * (advantages.ndim - 1))
        output["advantages"] = (advantages * of_rows).to(advantages.dtype)
    return replace(batch, weights=weights[: len(batch.places)].tolist())
