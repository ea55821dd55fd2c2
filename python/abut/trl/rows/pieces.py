"""A micro-step in pieces, each with as many rows as the trainer's batch size allows.

TRL splits the rows of a generation batch into as many chunks as there are micro-steps, so a chunk
grows with the conversations of a rollout. A chunk with more than `per_device_train_batch_size` rows
is cut, and the backward pass of each piece except for the last runs here. Gradients and losses
equal those of the whole chunk. Every rank cuts its chunk into the same number of pieces, because
their chunks are equally long.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from abut.trl.rows.row_batch import ROW
from abut.trl.rows.row_weights import trained_mask
from abut.trl.version import METRICS_OF_TOKENS, trl_version

_OF_PROMPT = ("prompt_ids", "prompt_mask")
_OF_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
)
_OF_BOTH = ("token_type_ids", "mm_token_type_ids")

Metrics = Mapping[str, list[float]]


@dataclass(frozen=True)
class RowPiece:
    """Some rows of a chunk.

    Attributes:
        inputs: the inputs in TRL's format.
        share: the share of the piece in the chunk's loss.
    """

    inputs: dict[str, Any]
    share: float


def loss_in_pieces(
    trainer: Any, model: Any, inputs: dict[str, Any], loss_of: Callable[[dict[str, Any]], Any]
) -> Any:
    """Return the loss of a chunk; the gradients of all pieces but the last are already added up.

    Args:
        trainer: a `GRPOTrainer`.
        model: the trained model, as wrapped by the trainer.
        inputs: of the chunk.
        loss_of: TRL's own loss.
    """
    pieces = pieces_of(trainer, inputs)
    if len(pieces) == 1:
        pieces = [RowPiece(inputs, 1.0)]
    of_trainer, counts = trainer._metrics["train"], _counts(trainer, pieces)
    logged: list[Metrics] = []
    value: Any = 0.0
    try:
        for piece in pieces:
            logged.append(defaultdict(list))
            trainer._metrics["train"] = logged[-1]
            is_last = piece is pieces[-1]
            with nullcontext() if is_last else _without_sync(trainer, model):
                loss = loss_of(piece.inputs)
                if len(pieces) > 1:
                    loss = loss * piece.share
                if not is_last:
                    _backward(trainer, loss)
                    value = value + loss.detach()
    finally:
        trainer._metrics["train"] = of_trainer
    shares = [piece.share for piece in pieces]
    for name, joined in _joined(logged, shares, counts, _counted_by_rows(trainer, inputs)):
        of_trainer[name].append(joined)
    return loss if len(pieces) == 1 else loss + value


def pieces_of(trainer: Any, inputs: dict[str, Any]) -> list[RowPiece]:
    """Cut a chunk, longest rows first, so that each piece is hardly wider than its rows."""
    rows, size = len(inputs[ROW]), trainer.args.per_device_train_batch_size
    lengths = inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)
    # Padding comes last, where the shortest rows are: it is nearly free.
    order = torch.where(inputs[ROW] < 0, -1, lengths).argsort(descending=True, stable=True)
    multiple = getattr(trainer, "pad_to_multiple_of", None) or 1
    tokens, items = trained_mask(inputs).sum().item(), inputs["num_items_in_batch"].item()
    pieces = []
    for start in range(0, rows, size):
        chosen = order[start : start + size]
        piece = trimmed(
            {
                name: value[chosen] if isinstance(value, torch.Tensor) and value.ndim else value
                for name, value in inputs.items()
            },
            multiple,
        )
        share = len(chosen) / rows
        if trainer.loss_type == "bnpo":  # divides by the tokens that a chunk trains
            share = trained_mask(piece).sum().item() / tokens if tokens else 0.0
        elif trainer.loss_type in ("dapo", "cispo", "vespo"):
            # These divide by `num_items_in_batch`, but never by less than 1.
            share = max(share, 1.0 / max(items, 1))
        piece["num_items_in_batch"] = inputs["num_items_in_batch"] * share
        pieces.append(RowPiece(piece, share))
    return pieces


def trimmed(inputs: dict[str, Any], multiple: int) -> dict[str, Any]:
    """Return the inputs without columns that are padding in each row.

    Tensors are recognized by name, because the width does not tell which part of a row one belongs
    to.

    Args:
        inputs: some rows of a chunk.
        multiple: the widths of prompts and completions stay multiples of it, if they were.
    """
    width = inputs["prompt_mask"].shape[1], inputs["completion_mask"].shape[1]
    prompt = _width(inputs["prompt_mask"].flip(1), multiple)
    # TRL takes what is one column wide for numbers of whole rows, and counts padding in them.
    completion = _width(inputs["completion_mask"], multiple, least=2)
    found = dict(inputs)
    for name in _OF_PROMPT:
        found[name] = inputs[name][:, width[0] - prompt :]
    for name in _OF_COMPLETION:
        value = inputs.get(name)
        if value is not None and value.ndim == 2 and value.shape[1] > 1:
            found[name] = value[:, :completion]
    for name in _OF_BOTH:
        if inputs.get(name) is not None:
            found[name] = inputs[name][:, width[0] - prompt : width[0] + completion]
    return found


def _width(mask: torch.Tensor, multiple: int, *, least: int = 1) -> int:
    """Return how many columns are needed up to the last one with a 1, with a minimum."""
    used = mask.any(0).nonzero()
    width = max(least, int(used[-1]) + 1 if len(used) else 0)
    whole: int = mask.shape[1]
    return min(-(-width // multiple) * multiple, whole)


@contextmanager
def _without_sync(trainer: Any, model: Any) -> Iterator[None]:
    """Prevent the exchange of gradients and the optimizer step after this piece."""
    state = trainer.accelerator.gradient_state
    before = state.sync_gradients
    # FSDP must not delay its sync, because each rank would hold whole gradients until then.
    is_ddp = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    # DeepSpeed takes an optimizer step after each backward pass where this is set.
    state._set_sync_gradients(False)
    try:
        with model.no_sync() if is_ddp else nullcontext():
            yield
    finally:
        state._set_sync_gradients(before)


def _backward(trainer: Any, loss: Any) -> None:
    from accelerate.utils import DistributedType

    is_deepspeed = trainer.accelerator.distributed_type == DistributedType.DEEPSPEED
    # TRL's loss is divided by the accumulation already, as `Trainer.training_step` says too.
    trainer.accelerator.backward(loss, **({"scale_wrt_gas": False} if is_deepspeed else {}))


# ---- metrics

_RATIO_MEANS = frozenset(
    {"cispo_clip_ratio", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"}
)
_TOKEN_MEANS = _RATIO_MEANS | {"kl", "entropy"}
"""Metrics that TRL averages over trained tokens, or over rows for ratios of whole rows."""
_LOW_MEAN, _LOW_MIN, _HIGH_MAX = "clip_ratio/low_mean", "clip_ratio/low_min", "clip_ratio/high_max"
_PHI = "vespo/phi_seq_mean"
_OF_ROWS = _TOKEN_MEANS | {_LOW_MIN, _HIGH_MAX, _PHI}
"""Metrics of rows; others belong to a micro-step, or to a trainer's subclass."""


@dataclass(frozen=True)
class _Counts:
    """The counts of a piece over all ranks, and on how many ranks it trains tokens."""

    tokens: int
    rows: int
    padding: int
    ranks: int
    training_ranks: int


def _counts(trainer: Any, pieces: Sequence[RowPiece]) -> list[_Counts]:
    of_rank = [
        (trained_mask(piece.inputs).sum().item(), len(piece.inputs[ROW]), _padding(piece))
        for piece in pieces
    ]
    counts = torch.tensor(of_rank, dtype=torch.int64, device=trainer.accelerator.device)
    of_ranks = trainer.accelerator.gather(counts).view(-1, *counts.shape)
    training_ranks = (of_ranks[:, :, 0] > 0).sum(0).tolist()
    return [
        _Counts(tokens, rows, padding, len(of_ranks), training)
        for (tokens, rows, padding), training in zip(
            of_ranks.sum(0).tolist(), training_ranks, strict=True
        )
    ]


def _padding(piece: RowPiece) -> int:
    return int((piece.inputs[ROW] < 0).sum())


def _counted_by_rows(trainer: Any, inputs: Mapping[str, Any]) -> frozenset[str]:
    """Return the metrics that TRL averages over rows, including padding."""
    if inputs["advantages"].ndim > 1:  # one number for each token, as a product with them
        return frozenset()
    is_by_rows = trainer.importance_sampling_level == "sequence"
    return frozenset({_PHI}) | (_RATIO_MEANS if is_by_rows else frozenset())


def _joined(
    logged: Sequence[Metrics],
    shares: Sequence[float],
    counts: Sequence[_Counts],
    by_rows: frozenset[str],
) -> Iterator[tuple[str, float]]:
    """Yield each metric of a chunk, computed from its pieces, in TRL's order.

    A metric for which no piece has a number is left out.
    """
    is_by_rank = trl_version() < METRICS_OF_TOKENS
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for metrics in logged for name in metrics):
        have = [
            (counts[k], shares[k], metrics[name][-1])
            for k, metrics in enumerate(logged)
            if metrics.get(name) and not math.isnan(metrics[name][-1])
        ]
        if name in _OF_ROWS:
            have = [one for one in have if one[0].rows > one[0].padding]
        if is_by_rank:
            have = _over_training_ranks(name, have, by_rows)
        elif name == _LOW_MIN and _LOW_MEAN in by_rows and have:
            # Each row is clipped or not, and padding is not: the least is 1 if all others are.
            have = [(have[0][0], 1.0, float(found.get(_LOW_MEAN, 0.0) > 1 - 1e-6))]
        joined = _join(name, have, by_rows)
        if joined is not None:
            found[name] = joined
            yield name, joined


_Value: TypeAlias = tuple[_Counts, float, float]
"""The counts of a piece, its share, and the value of a metric."""


def _over_training_ranks(name: str, have: list[_Value], by_rows: frozenset[str]) -> list[_Value]:
    """Return a mean over ranks, restricted to the ranks that train tokens of a piece.

    Other ranks have 0 or count padding, so they would distort means and minima.
    """
    if name == _LOW_MIN:
        if _LOW_MEAN in by_rows:
            return [one for one in have if one[0].padding == 0]
        return [one for one in have if one[0].training_ranks == one[0].ranks]
    if name not in _TOKEN_MEANS - by_rows:
        return have
    return [
        (n, share, value * n.ranks / n.training_ranks)
        for n, share, value in have
        if n.training_ranks
    ]


def _join(name: str, have: Sequence[_Value], by_rows: frozenset[str]) -> float | None:
    values = [value for _, _, value in have]
    if not values:
        return None
    if name.endswith(("_min", "/min")):
        return min(values)
    if name.endswith(("_max", "/max")):
        return max(values)
    if name == "policy_loss":
        return sum(share * value for _, share, value in have)
    if name in by_rows:
        of_padding = 1.0 if name == _PHI else 0.0
        total = sum(value * n.rows - of_padding * n.padding for n, _, value in have)
        return total / sum(n.rows - n.padding for n, _, _ in have)
    tokens = sum(n.tokens for n, _, _ in have)
    if tokens:
        return sum(n.tokens * value for n, _, value in have) / tokens
    return None if name in _OF_ROWS else values[-1]
