"""Requests to vLLM servers under test."""

from typing import Any

import numpy as np

from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.vllm import VLLMServerSampler

STOP = 505


def request(rollout_id: str = "r0", **changes: Any) -> SampleRequest:
    fields = {
        "prompt_ids": np.arange(5, 9),
        "max_tokens": 8,
        "stop_token_ids": (29,),
        "seed": 7,
        "rollout_id": rollout_id,
        "turn": 0,
    }
    return SampleRequest(**fields | changes)


class Asked(VLLMServerSampler):
    """Keeps each sample beside its request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[tuple[SampleRequest, Sample]] = []

    async def sample(self, request: SampleRequest) -> Sample:
        sample = await super().sample(request)
        self.calls.append((request, sample))
        return sample


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"repetition_penalty": 1.3},
    {"temperature": 1.4, "top_k": 20, "repetition_penalty": 1.2},
]


def requests(count: int = 8, max_tokens: int = 12, **changes: Any) -> list[SampleRequest]:
    fields = {"max_tokens": max_tokens, "stop_token_ids": (STOP,), "turn": 0}
    return [
        SampleRequest(
            prompt_ids=np.arange(20, 24 + 3 * k), seed=k, rollout_id=f"r{k}", **fields | changes
        )
        for k in range(count)
    ]
