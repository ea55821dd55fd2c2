"""The gradient of a GRPO step, written out once more: row by row, without padding and without TRL.

A loss is a mean over rollouts, or over tokens, however tokens are divided into conversations. No
weight of a row occurs here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from abut import Columns

Rows = Sequence[Sequence[Columns]]
"""The conversations of each rollout."""


@dataclass
class Loss:
    """The settings of a loss, by TRL's names, and what is fixed in it.

    Attributes:
        old: weights that computed the old logprobs; None: those of the step itself.
        reference: weights of the reference model.
        corrects_divergence: TRL's `use_bias_correction_kl`.
        correction: mode of vLLM's correction; None: it is off. It needs `old`.
        cap: of the ratios of vLLM's correction.
        max_completion_length: of the trainer, for `dr_grpo`.
    """

    loss_type: str = "grpo"
    beta: float = 0.0
    epsilon: float = 0.2
    epsilon_high: float | None = None
    sequence_level: bool = False
    old: Any = None
    reference: Any = None
    corrects_divergence: bool = False
    correction: str | None = None
    cap: float = 3.0
    max_completion_length: int = 64


def group_advantages(rewards: Sequence[float | None], group: int, scale: str = "group") -> Any:
    """Return `(rollouts,)` float64: TRL's advantages, as its documentation has them."""
    values = torch.tensor([float("nan") if r is None else r for r in rewards], dtype=torch.float64)
    grouped = values.view(-1, group)
    centred = (grouped - grouped.nanmean(1, keepdim=True)).flatten()
    if scale == "group":
        std = torch.stack([g[~g.isnan()].std() for g in grouped]).repeat_interleave(group)
        centred = centred / (std + 1e-4)
    elif scale == "batch":
        centred = centred / (values[~values.isnan()].std() + 1e-4)
    return centred.nan_to_num(0.0)


def reverse_kl_advantages(
    rollouts: Rows, advantages: Any, teacher: Any, coef: float
) -> list[list[Any]]:
    """Return `[rollout][row]`, `(n,)` float64 each: advantages less the penalty of each token.

    Args:
        rollouts: have the logprobs that tokens were sampled with.
        advantages: of each rollout, or of each row or of its tokens.
        teacher: a model in float64.
        coef: of a nat.
    """
    found = []
    for k, rows in enumerate(rollouts):
        found.append([])
        for j, columns in enumerate(rows):
            own = torch.tensor(
                columns.logprobs[columns.env_mask == 1].tolist(), dtype=torch.float64
            )
            with torch.no_grad():
                of_teacher = logprobs_of(teacher, columns)
            given = advantages[k][j] if isinstance(advantages[k], list) else advantages[k]
            found[-1].append(given - coef * (own - of_teacher))
    return found


def logprobs_of(model: Any, columns: Columns) -> Any:
    """Return the logprobs of the trained tokens of one row, `(n,)`."""
    ids = torch.tensor([[*columns.prompt_ids.tolist(), *columns.completion_ids.tolist()]])
    start = len(columns.prompt_ids)
    logits = model(input_ids=ids).logits[0, start - 1 : -1]
    logprobs = logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
    return logprobs[torch.tensor(columns.env_mask.tolist(), dtype=torch.bool)]


def divergences(student: Any, teacher: Any, columns: Columns, beta: float, sampled: int = 1) -> Any:
    """`(n,)` float64: of each token whose mask is `sampled`, over the whole vocabulary."""
    ids = torch.tensor([[*columns.prompt_ids.tolist(), *columns.completion_ids.tolist()]])
    start = len(columns.prompt_ids)
    mask = torch.tensor(columns.env_mask.tolist()) == sampled
    ours = student(input_ids=ids).logits[0, start - 1 : -1][mask].double().log_softmax(-1)
    with torch.no_grad():
        theirs = teacher(input_ids=ids).logits[0, start - 1 : -1][mask].double().log_softmax(-1)

    def kl(left: Any, right: Any) -> Any:
        return (left.exp() * (left - right)).sum(-1)

    if beta in (0, 1):
        return kl(theirs, ours) if beta == 0 else kl(ours, theirs)
    mixed = ((1 - beta) * ours.exp() + beta * theirs.exp()).log()
    return beta * kl(theirs, mixed) + (1 - beta) * kl(ours, mixed)


def token_losses(loss: Loss, model: Any, columns: Columns, advantage: Any) -> Any:
    """Return the loss of each trained token of a row, `(n,)`."""
    now = logprobs_of(model, columns)
    with torch.no_grad():
        before = now.detach() if loss.old is None else logprobs_of(loss.old, columns)
    log_ratio = now - before
    ratio = (log_ratio.mean().expand_as(now) if loss.sequence_level else log_ratio).exp()
    high = loss.epsilon if loss.epsilon_high is None else loss.epsilon_high
    if loss.loss_type == "cispo":
        losses = -ratio.clamp(max=high).detach() * advantage * now
    elif loss.loss_type == "sapo":
        temperature = torch.where(torch.as_tensor(advantage) > 0, 1.0, 1.05)
        losses = -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * advantage
    elif loss.loss_type == "vespo":
        losses = -_vespo(log_ratio.detach(), advantage) * advantage * now
    else:
        clipped = ratio.clamp(1 - loss.epsilon, 1 + high)
        losses = -torch.min(ratio * advantage, clipped * advantage)
    if loss.correction:
        losses = losses * _correction(loss, before, columns)
    if loss.beta:
        with torch.no_grad():
            reference = logprobs_of(loss.reference, columns)
        divergence = (reference - now).exp() - (reference - now) - 1
        losses = losses + loss.beta * divergence * (ratio if loss.corrects_divergence else 1)
    return losses


def _vespo(log_ratio: Any, advantage: Any) -> Any:
    w = log_ratio.sum().exp()
    k, strength = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
    return torch.exp(torch.as_tensor(strength) - strength * w) * w**k


def _correction(loss: Loss, before: Any, columns: Columns) -> Any:
    sampled = torch.tensor(columns.logprobs.tolist(), dtype=torch.float64)
    mask = torch.tensor(columns.env_mask.tolist(), dtype=torch.bool)
    difference = before - sampled[mask]
    assert loss.correction is not None
    level, kind = loss.correction.split("_")
    ratio = (difference.sum() if level == "sequence" else difference).exp()
    if kind == "truncate":
        return ratio.clamp(max=loss.cap)
    return torch.where(ratio > loss.cap, torch.zeros_like(ratio), ratio)


def whole_loss(loss: Loss, model: Any, rollouts: Rows, advantages: Any) -> Any:
    """Return the loss of a batch; rollouts vote, or tokens do, as the loss type says."""
    each: list[list[Any]] = []
    for k, rows in enumerate(rollouts):
        of_rollout = advantages[k]
        each.append(
            [
                token_losses(loss, model, columns, of_rollout[j])
                if isinstance(of_rollout, list)
                else token_losses(loss, model, columns, of_rollout)
                for j, columns in enumerate(rows)
            ]
        )
    sums = torch.stack([sum((row.sum() for row in rows), torch.zeros(())) for rows in each])
    counts = torch.tensor([sum(len(row) for row in rows) for rows in each], dtype=torch.float64)
    if loss.loss_type in ("grpo", "sapo"):
        return (sums / counts.clamp(min=1)).mean()
    if loss.loss_type == "dr_grpo":
        return sums.mean() / loss.max_completion_length
    if loss.loss_type == "luspo":
        return sums.mean()
    return sums.sum() / counts.sum()


def gradient_of(loss: Loss, model: Any, rollouts: Rows, advantages: Any) -> Any:
    """Return the gradient of a batch's loss, all parameters in one vector, in their order."""
    model.zero_grad()
    whole_loss(loss, model, rollouts, advantages).backward()
    return flat_gradient(model)


def flat_gradient(model: Any) -> Any:
    """Return the gradients of all parameters that are trained, whole, in one vector."""
    found = [p for p in model.parameters() if p.requires_grad]
    each = [torch.zeros_like(p) if p.grad is None else p.grad for p in found]
    return torch.cat([whole(gradient).flatten() for gradient in each]).double()


def whole(tensor: Any) -> Any:
    """Return a tensor of which ranks may hold a part each."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def relative_error(found: Any, right: Any) -> float:
    """Return the norm of the difference over the norm of the right one."""
    return float((found - right).norm() / right.norm())
