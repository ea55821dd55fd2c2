"""A sampler that answers by a script, for tests and benchmarks."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from abut.samplers.sampler import Sample, SampleRequest

Script: TypeAlias = Callable[[SampleRequest], Sequence[int]]


def _falling(index: int) -> float:
    return -0.5 - index / 64


class ScriptedSampler:
    """A sampler that answers by a script, for tests and benchmarks.

    Args:
        script: gives the ids for a request; cut at `max_tokens`.
        logprob: gives the logprob of the token at an index of the sample, in nats.
        delay_s: gives the seconds that the answer takes.
    """

    def __init__(
        self,
        script: Script,
        *,
        logprob: Callable[[int], float] = _falling,
        delay_s: Callable[[SampleRequest], float] | None = None,
    ) -> None:
        self._script = script
        self._logprob = logprob
        self._delay_s = delay_s
        self.requests: list[SampleRequest] = []

    async def sample(self, request: SampleRequest) -> Sample:
        """Answer by the script."""
        self.requests.append(request)
        if self._delay_s is not None:
            await asyncio.sleep(self._delay_s(request))
        ids = list(self._script(request))[: request.max_tokens]
        stopped = bool(ids) and ids[-1] in request.stop_token_ids
        return Sample(
            np.asarray(ids, dtype=np.int64),
            np.asarray([self._logprob(index) for index in range(len(ids))], dtype=np.float32),
            "stop" if stopped else "length",
        )
