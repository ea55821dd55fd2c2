"""The weights of rows, which make a rollout's loss independent of how its tokens are divided.

A loss type defines how TRL reduces N rows: a mean over rows, or over tokens. Weights turn this into
the same reduction over B rollouts.
"""

from typing import Any

import torch

TOKENS_VOTE = frozenset({"dapo", "cispo", "vespo", "bnpo"})
"""Loss types that divide by the number of tokens: each token has one vote."""
ROLLOUTS_VOTE = frozenset({"grpo", "sapo"})
"""Loss types that take the mean of each row, then the mean over rows."""
CONSTANTS_DIVIDE = frozenset({"dr_grpo", "luspo"})
"""Loss types that add up the tokens of each row, and divide by a number of rows."""


def trained_mask(inputs: dict[str, Any]) -> torch.Tensor:
    """Return `(N, T)`, 1 where a token is trained; truncated rows may be masked already."""
    mask: torch.Tensor = inputs["completion_mask"]
    return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]


def row_weights(
    loss_type: str, trained: torch.Tensor, rollout_of: torch.Tensor, rollouts: int
) -> torch.Tensor:
    """Return the factor on the loss of each row, `(N,)` float64.

    Args:
        loss_type: of the trainer, one that `check_loss_type` knows.
        trained: `(N,)` trained tokens of each row, after masks of truncated rows.
        rollout_of: `(N,)` the rollout of each row; -1 for padding.
        rollouts: the number of rollouts on this rank.
    """
    tokens, real = trained.to(torch.float64), rollout_of >= 0
    of_rollout = torch.zeros(rollouts, dtype=torch.float64, device=trained.device)
    of_rollout.index_add_(0, rollout_of[real], tokens[real])
    whole = torch.where(real, of_rollout[rollout_of.clamp(min=0)], 0.0)
    if loss_type in ROLLOUTS_VOTE:
        weights = tokens / whole.clamp(min=1.0) * (len(tokens) / rollouts)
    elif loss_type in CONSTANTS_DIVIDE:
        weights = torch.full_like(tokens, len(tokens) / rollouts)
    else:
        weights = torch.ones_like(tokens)
    return torch.where(whole > 0, weights, 0.0)


def check_loss_type(loss_type: str, without: str) -> None:
    """Refuse a loss type for which abut has no weights.

    Args:
        loss_type: of the trainer.
        without: the end of the hint: how to train without weights.

    Raises:
        ValueError: abut does not know the loss type.
    """
    known = TOKENS_VOTE | ROLLOUTS_VOTE | CONSTANTS_DIVIDE
    if loss_type not in known:
        raise ValueError(
            f"loss_type={loss_type!r}: abut can weigh the rows of a rollout only with "
            f"{', '.join(sorted(known))}\n"
            f"hint: use one of these, {without}"
        )


def weigh_gradient(logprobs: torch.Tensor, weights: torch.Tensor) -> None:
    """Multiply the gradient of each row of `logprobs` by a weight, without changing the values.

    For a loss with a KL term, which advantages do not scale.

    Args:
        logprobs: `(N, T)`, part of a graph.
        weights: `(N,)` float32 or float64.
    """
    factors = weights.unsqueeze(1)
    # The product has the wider dtype: bfloat16 would round the weights to three digits.
    logprobs.register_hook(lambda gradient: (gradient * factors).to(gradient.dtype))
