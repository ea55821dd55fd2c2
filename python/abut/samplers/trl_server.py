"""Sampling from TRL's own server, `trl vllm-serve` up to 1.10: one batch of turns at a time.

Invariant: a sample is complete, with the logprobs of the distribution it was drawn from, which that
server always returns. `/generate/` answers one call at a time and takes one set of settings for all
prompts of a call, so requests that arrive meanwhile wait and are sent together.
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
    "it holds connections of this process",
    hint="send the sampler's arguments, and create the sampler in the other process",
)
class TRLServerSampler:
    """Samples from a server of TRL up to 1.10.

    An async context manager; the engine enters it for each batch. abut does not send a seed,
    because the server takes one seed for all prompts of a call, so equal prompts would get equal
    samples. Samples therefore differ from run to run.

    Args:
        base_url: `http://host:port`.
        give_up_s: how many seconds the server may be unavailable before this is an error.
        on_restart: as for `VLLMServerSampler`.
        **sampling: temperature, top_k, top_p, min_p, repetition_penalty and generation_kwargs
            (more sampling settings of vLLM), as in `SamplingSettings`.

    Raises:
        ValueError: this sampler does not support a setting.
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
        """Open connections and wait until the server is available."""
        await self._fleet.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections."""
        if self._calling is not None:
            self._calling.cancel()
            await asyncio.gather(self._calling, return_exceptions=True)
        self._calling, self._waiting = None, []
        await self._fleet.__aexit__(*exc)

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn, together with all others that wait.

        Raises:
            SamplerError: the server refused the call, gave a wrong answer, or is unavailable.
        """
        if request.stop:
            raise SamplerError(
                f"{request.where} has stop strings, but the server's answer does not name the one "
                "that ended a sample\n"
                "hint: pip install 'trl>=1.11', which uses `vllm serve`, whose answers name it"
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
        where = f"{first.where} and {len(requests) - 1} more"
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
                "for `vllm serve`, use VLLMServerSampler"
            ) from error


def _samples(answer: Any, requests: Sequence[SampleRequest]) -> list[Sample]:
    """Return the samples of an answer, each cut at its request's `max_tokens`."""
    columns = answer["prompt_ids"], answer["completion_ids"], answer["logprobs"]
    samples = []
    for request, prompt_ids, ids, logprobs in zip(requests, *columns, strict=True):
        if prompt_ids != request.prompt_ids.tolist():
            raise SamplerError(
                f"the engine received {len(prompt_ids)} prompt tokens, which differ from the "
                f"{len(request.prompt_ids)} of the request"
            )
        if len(ids) != len(logprobs):
            raise SamplerError(f"{len(ids)} ids came with {len(logprobs)} logprobs")
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
