"""The policy's calls, and the rows that an arm trains on.

A call is a request to the sampler and its sample. A row is the trainer's input for a rollout. In
each row, the k-th run of trained tokens comes from the rollout's k-th call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from abut.samplers import Sample, SampleRequest


@dataclass
class Call:
    """One request, its sample, and the sampler's logprobs (None: unknown)."""

    prompt: list[int]
    sampled: list[int]
    logprobs: list[float] | None


@dataclass
class Row:
    """A trained row, and the calls of its rollout."""

    ids: list[int]
    trained: list[bool]
    """True for each trained token of `ids`."""
    logprobs: list[float] | None
    """The sampler's logprobs of `ids`, as the arm aligned them."""
    calls: list[Call]
    reward: float = 0.0
    advantage: float = 0.0
    matches: list[tuple[int, int, int]] = field(default_factory=list)
    """(index in the row, call, index in its sample) of each trained token that was sampled."""

    def __post_init__(self) -> None:
        """Find the trained tokens that were sampled, turn by turn."""
        runs = runs_of(self.trained)
        if len(runs) != len(self.calls):
            raise ValueError(f"{len(runs)} runs of trained tokens, {len(self.calls)} calls")
        for k, ((start, end), call) in enumerate(zip(runs, self.calls, strict=True)):
            same = SequenceMatcher(None, self.ids[start:end], call.sampled, autojunk=False)
            self.matches += [
                (start + block.a + n, k, block.b + n)
                for block in same.get_matching_blocks()
                for n in range(block.size)
            ]

    def counts(self) -> np.ndarray:
        """Return four counts of tokens, `(4,)` int64.

        Trained; trained but never sampled; trained and sampled, but after other tokens than the
        sampler saw; sampled but not trained.
        """
        trained, matched = sum(self.trained), len(self.matches)
        elsewhere = sum(
            self.ids[:at] != self.calls[k].prompt + self.calls[k].sampled[:n]
            for at, k, n in self.matches
        )
        sampled = sum(len(call.sampled) for call in self.calls)
        return np.array([trained, trained - matched, elsewhere, sampled - matched])


def runs_of(trained: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the start and end of each run of True."""
    edges = np.flatnonzero(np.diff([0, *map(int, trained), 0])).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


class RecordingSampler:
    """Samples with a model in this process, and records the calls of each rollout."""

    def __init__(self, model: Any, pad_token_id: int) -> None:
        from abut.samplers.transformers import TransformersSampler

        self._sampler = TransformersSampler(model, pad_token_id=pad_token_id)
        self.calls: dict[str, list[Call]] = {}

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Sample one turn for each request."""
        samples = self._sampler.sample_batch(requests)
        for request, sample in zip(requests, samples, strict=True):
            call = Call(request.prompt_ids.tolist(), sample.ids.tolist(), sample.logprobs.tolist())
            self.calls.setdefault(request.rollout_id.partition(".")[0], []).append(call)
        return samples
