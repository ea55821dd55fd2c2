"""Distances between sampled and trained tokens: gradients, KL divergences, TRL's ratios.

All passes use float64 and the weights that sampled the batch.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from scripts.exactness.calls import Row

ROWS_AT_ONCE = 32
RATIO_LIMIT = 3.0
"""`vllm_importance_sampling_clip_max` of `GRPOConfig`: a row above it is masked by default."""


def compared(model: Any, rows: Sequence[Row]) -> dict[str, float | None]:
    """Compare the arm's training rows with the samples.

    Returns:
        `cosine`, of the arm's policy gradient with the exact one; None where one of them is zero.
        `kl`, mean over the trained tokens that were sampled, nats: from the distribution that the
        token was drawn from to the one that it is trained in.
        `logp_difference` and `ratio`, as TRL logs them with vLLM: the mean over trained tokens of
        the absolute difference between the trainer's logprobs and the sampler's, and the mean
        importance ratio of rows.
    """
    import torch

    model = copy.deepcopy(model).double()
    parameters = [p for p in model.parameters() if p.requires_grad]
    calls = [
        (call.prompt + call.sampled, len(call.prompt), row.advantage)
        for row in rows
        for call in row.calls
    ]
    drawn: list[Any] = []
    for sequences in _parts(calls):
        loss = torch.zeros((), dtype=torch.float64)
        for (ids, start, advantage), logp in zip(sequences, _logps(model, sequences), strict=True):
            loss = loss - advantage * _picked(logp, ids, start).sum()
            drawn.append(logp.detach())
        loss.backward()
    exact = _gradient(parameters)
    divergences, differences, ratios = [], [], []
    first_call = 0
    trained_rows = [(row.ids, row.trained.index(True), row) for row in rows]
    for sequences in _parts(trained_rows):
        loss = torch.zeros((), dtype=torch.float64)
        for (ids, start, row), logp in zip(sequences, _logps(model, sequences), strict=True):
            trained = torch.tensor(row.trained[start:])
            picked = _picked(logp, ids, start)
            loss = loss - row.advantage * picked[trained].sum()
            own = drawn[first_call : first_call + len(row.calls)]
            first_call += len(row.calls)
            there = torch.stack([own[k][n] for _, k, n in row.matches])
            here = logp.detach()[[at - start for at, _, _ in row.matches]]
            divergences += (there.exp() * (there - here)).sum(-1).tolist()
            said = _told(row, own)
            gaps = (picked.detach() - torch.tensor(said[start:]))[trained]
            differences += gaps.abs().tolist()
            ratio = math.exp(min(float(gaps.sum()), 700.0))
            ratios.append(ratio if ratio <= RATIO_LIMIT else 0.0)
        loss.backward()
    of_arm = _gradient(parameters)
    norms = float(exact.norm() * of_arm.norm())
    return {
        "cosine": float(exact @ of_arm) / norms if norms else None,
        "kl": fmean(divergences),
        "logp_difference": fmean(differences),
        "ratio": fmean(ratios),
    }


def _told(row: Row, drawn: Sequence[Any]) -> list[float]:
    """Return the sampler's logprobs along the row, computed from its calls if they are unknown.

    TRL's loop does not get logprobs from `generate`. Its rows hold the sampled tokens in order.
    """
    if row.logprobs is not None:
        return row.logprobs
    told = [0.0] * len(row.ids)
    for at, k, n in row.matches:
        told[at] = float(drawn[k][n, row.ids[at]])
    return told


def _parts(sequences: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for at in range(0, len(sequences), ROWS_AT_ONCE):
        yield sequences[at : at + ROWS_AT_ONCE]


def _logps(model: Any, sequences: Sequence[Any]) -> list[Any]:
    """Return for each `(ids, start, …)` the log-softmax that predicts `ids[start:]`, `(T, V)`."""
    import torch

    longest = max(len(ids) for ids, *_ in sequences)
    # Padding on the right does not affect earlier tokens of a causal model.
    padded = np.zeros((len(sequences), longest), np.int64)
    for k, (ids, *_) in enumerate(sequences):
        padded[k, : len(ids)] = ids
    hidden = model.model(input_ids=torch.from_numpy(padded)).last_hidden_state
    return [
        model.lm_head(hidden[k, start - 1 : len(ids) - 1]).log_softmax(-1)
        for k, (ids, start, *_) in enumerate(sequences)
    ]


def _picked(logp: Any, ids: Sequence[int], start: int) -> Any:
    import torch

    return logp.gather(1, torch.tensor(ids[start:])[:, None])[:, 0]


def _gradient(parameters: Sequence[Any]) -> Any:
    import torch

    flat = torch.cat([p.grad.flatten() for p in parameters])
    for p in parameters:
        p.grad = None
    return flat
