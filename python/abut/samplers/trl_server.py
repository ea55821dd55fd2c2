"""Sampling from TRL's own server, `trl vllm-serve` up to 1.10: turns in batches, one at a time.

Invariant: a sample is whole, with the logprobs of what it was drawn from, as that server always
gives them. Its `/generate/` answers one call after the other and takes one set of settings for all
prompts of a call, so requests that come while it works wait and go together.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self, TypeAlias, Unpack

import numpy as np

from abut.address import Address
from abut.errors import SamplerError
from abut.pickling import stays
from abut.samplers.fleet import Fleet, OnRestart
from abut.samplers.fleet_server import FleetServer, Refused
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.settings import NAMED, SamplingKeywords, settings_of
from abut.samplers.vllm_request import vllm_settings

# How long further requests are waited for before the first call of a batch.
_GATHER_S = 0.02

_Waiting: TypeAlias = "tuple[SampleRequest, asyncio.Future[Sample]]"


@stays(
    "it has connections of this process",
    hint="send its arguments, and make the sampler there",
)
class TRLServerSampler:
    """Samples from one server of TRL up to 1.10.

    An async context manager; the engine enters it for each batch. The server takes one seed for all
    prompts of a call, with which equal prompts would get equal samples, so it gets none: what is
    sampled differs from run to run.

    Args:
        base_url: `http://host:port`.
        give_up_s: how long the server may be away, before that is an error.
        on_restart: as for `VLLMServerSampler`.
        **sampling: temperature, top_k, top_p, min_p, repetition_penalty and generation_kwargs
            (more sampling settings of vLLM), as in `SamplingSettings`.

    Raises:
        ValueError: a setting that this sampler does not take.
    """

    def __init__(
        self,
        base_url: str,
        *,
        give_up_s: float = 120.0,
        on_restart: OnRestart = "resume",
        **sampling: Unpack[SamplingKeywords],
    ) -> None:
        settings = settings_of(sampling)
        self._settings = vllm_settings(settings, says_stop_string=False)
        address = Address.of(base_url)
        self.base_urls = (address.url,)
        self._fleet = Fleet(
            [address], self._check, headers={}, give_up_s=give_up_s, on_restart=on_restart
        )
        self._waiting: list[_Waiting] = []
        self._calling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Open connections; waits until the server is well."""
        await self._fleet.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close them."""
        if self._calling is not None:
            self._calling.cancel()
            await asyncio.gather(self._calling, return_exceptions=True)
        self._calling, self._waiting = None, []
        await self._fleet.__aexit__(*exc)

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn, together with those that wait as well.

        Raises:
            SamplerError: the server refused the call or gave a wrong answer, or is away.
        """
        if request.stop:
            raise SamplerError(
                f"{request.where} has stop strings, and the server's answer does not say on which "
                "one a sample ended\n"
                "hint: TRL 1.11 asks `vllm serve`, whose answers do: pip install 'trl>=1.11'"
            )
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._calling is None or self._calling.done():
            self._calling = asyncio.create_task(self._call_all())
        return await future

    async def _call_all(self) -> None:
        await asyncio.sleep(_GATHER_S)
        while waiting := [one for one in self._waiting if not one[1].done()]:  # not given up
            # One set of stop tokens for a call; all of an engine's requests have the same.
            stops = waiting[0][0].stop_token_ids
            batch = [one for one in waiting if one[0].stop_token_ids == stops]
            self._waiting = [one for one in waiting if one[0].stop_token_ids != stops]
            try:
                samples = await self._call([request for request, _ in batch])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), sample in zip(batch, samples, strict=True):
                if not future.done():
                    future.set_result(sample)

    async def _call(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        first = requests[0]
        longest = max(request.max_tokens for request in requests)
        tokens = sum(len(request.prompt_ids) + longest for request in requests)
        body = {name: self._settings[name] for name in NAMED} | {
            "prompts": [request.prompt_ids.tolist() for request in requests],
            "n": 1,
            # A budget longer than its own changes nothing in a sample but where it is cut.
            "max_tokens": longest,
            "logprobs": 0,
            "generation_kwargs": {
                "stop_token_ids": list(first.stop_token_ids),
                # The others have no place of their own, and go to `SamplingParams` by name.
                **{name: said for name, said in self._settings.items() if name not in NAMED},
            },
        }
        where = f"{first.where}, and {len(requests) - 1} more"
        try:
            # One server, so one home for all of them.
            server, content = await self._fleet.ask(
                "", "/generate/", json.dumps(body).encode(), tokens=tokens
            )
        except Refused as error:
            raise SamplerError(f"{where}: {error}") from error
        try:
            return _samples(json.loads(content), requests)
        except (SamplerError, ValueError, KeyError, TypeError, IndexError) as error:
            raise SamplerError(
                f"{where}: the server at {server.url} gave a wrong answer: {error}\n"
                "hint: TRLServerSampler is for `trl vllm-serve` up to TRL 1.10"
            ) from error

    async def _check(self, server: FleetServer) -> None:
        try:
            await self._fleet.send(server, "/health/")
        except Refused as error:
            raise SamplerError(
                f"{error}\nhint: TRLServerSampler is for `trl vllm-serve` up to TRL 1.10; "
                "for `vllm serve`: VLLMServerSampler"
            ) from error


def _samples(answer: Any, requests: Sequence[SampleRequest]) -> list[Sample]:
    """The samples of an answer, each cut to its own budget."""
    columns = answer["prompt_ids"], answer["completion_ids"], answer["logprobs"]
    samples = []
    for request, prompt_ids, ids, logprobs in zip(requests, *columns, strict=True):
        if prompt_ids != request.prompt_ids.tolist():
            raise SamplerError(
                f"the engine received {len(prompt_ids)} prompt tokens, which are not the "
                f"{len(request.prompt_ids)} of the request"
            )
        if len(ids) != len(logprobs):
            raise SamplerError(f"{len(ids)} ids have {len(logprobs)} logprobs")
        # It does not say why a sample ended: one that is shorter than it may be has stopped.
        kept = ids[: request.max_tokens]
        stopped = len(kept) < request.max_tokens or kept[-1] in request.stop_token_ids
        samples.append(
            Sample(
                np.asarray(kept, dtype=np.int64),
                np.asarray([entry[0] for entry in logprobs[: len(kept)]], np.float32),
                "stop" if stopped else "length",
            )
        )
    return samples
