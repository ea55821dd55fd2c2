"""What a forward pass over the whole row says of sampled logprobs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from abut.samplers.sampler import Sample, SampleRequest

torch = pytest.importorskip("torch")


def filtered_logprobs(
    logits: Any,
    seen: Sequence[int],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
) -> Any:
    """The distribution after the filters, written out once more: `(V,)` logprobs in float64."""
    x = np.array(logits, dtype=np.float64)
    for id in set(seen):
        x[id] = x[id] / repetition_penalty if x[id] > 0 else x[id] * repetition_penalty
    x /= temperature
    if top_k:
        x[x < np.sort(x)[-top_k]] = -np.inf
    if top_p < 1:
        p = np.exp(x - x.max())
        p /= p.sum()
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]
        x[order[before >= top_p]] = -np.inf
    p = np.exp(x - x.max())
    p /= p.sum()
    p[p < min_p * p.max()] = 0
    with np.errstate(divide="ignore"):
        return np.log(p / p.sum())


def worst(
    model: Any, requests: Sequence[SampleRequest], samples: Sequence[Sample], **f: Any
) -> Any:
    """The largest difference, in nats, to a forward pass over the whole row."""
    most = 0.0
    for asked, sample in zip(requests, samples, strict=True):
        ids = [*asked.prompt_ids.tolist(), *sample.ids.tolist()]
        with torch.no_grad():
            logits = model(torch.tensor([ids], device=model.device)).logits[0].cpu().numpy()
        for k, logprob in enumerate(sample.logprobs.tolist()):
            at = len(asked.prompt_ids) + k
            right = filtered_logprobs(logits[at - 1], ids[:at], **f)[ids[at]]
            most = max(most, abs(right - logprob))
    return most
