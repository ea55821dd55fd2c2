"""Small models that train: one that is the same on each rank, and one that says forced texts."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from abut.demo.model import ASSETS
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.transformers import TransformersSampler

Says = Callable[[SampleRequest], Sequence[int] | None]
"""The ids that answer a request; None: what the model draws."""


def rank_model(**changes: Any) -> tuple[Any, Any]:
    """The demo's tokenizer and a model of its vocabulary.

    Args:
        changes: of the model's configuration.
    """
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    config: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    return tokenizer, Qwen3ForCausalLM(Qwen3Config(**config | changes))


@contextmanager
def forced_policy(says: Says, *, drawn_tokens: int) -> Iterator[list[Any]]:
    """Each request beside its sample; some samples are what `says` says, scored by the model.

    Args:
        says: what is forced.
        drawn_tokens: so many at the most in a sample that the model draws itself.
    """
    calls: list[Any] = []
    sample_batch = TransformersSampler.sample_batch

    def sampled(self: Any, requests: Sequence[SampleRequest]) -> list[Sample]:
        forced = [says(request) for request in requests]
        free = [
            dataclasses.replace(request, max_tokens=min(request.max_tokens, drawn_tokens))
            for request, ids in zip(requests, forced, strict=True)
            if ids is None
        ]
        drawn = iter(sample_batch(self, free) if free else [])
        samples = [
            next(drawn) if ids is None else _scored(self, request, ids)
            for request, ids in zip(requests, forced, strict=True)
        ]
        calls.extend(zip(requests, samples, strict=True))
        return samples

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersSampler, "sample_batch", sampled)
        yield calls


def _scored(sampler: Any, request: SampleRequest, ids: Sequence[int]) -> Sample:
    """What the model would have said of these ids at a temperature of 1."""
    ids = list(ids)[: request.max_tokens]
    whole = torch.tensor([[*request.prompt_ids.tolist(), *ids]])
    with torch.no_grad():
        logits = sampler._plain(whole).logits[0, len(request.prompt_ids) - 1 : -1]
    logprobs = logits.float().log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
    stopped = ids[-1] in request.stop_token_ids
    return Sample(
        np.asarray(ids, dtype=np.int64),
        logprobs.numpy().astype(np.float32),
        "stop" if stopped else "length",
    )
