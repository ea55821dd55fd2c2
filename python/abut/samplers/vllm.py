"""Sampling from vLLM servers: token ids in, token ids and logprobs out, one request for each turn.

Invariant: a sample is complete, was drawn by one server for exactly the ids of its request, and has
the logprobs of the distribution it was drawn from, after temperature, penalties and filters.
Servers that return other logprobs are refused before the first sample of each batch.

abut prefers `/v1/completions` to `/inference/v1/generate`: every server has it, it names the stop
string that ended a sample, it repeats the prompt, which abut compares, and its replies are half as
long. It cannot take images together with ids, so requests with images go to the other endpoint,
which repeats the prompt on request; `/detokenize` then shows which stop string ended a sample.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self, Unpack

import numpy as np

from abut._native import Choice, read_completions
from abut.address import Address, check_one_authorization, checked_headers
from abut.concurrency.clock import backoff
from abut.errors import SamplerError
from abut.pickling import stays
from abut.samplers.fleet import Fleet, OnRestart
from abut.samplers.fleet_server import FleetServer, Refused, Unavailable
from abut.samplers.sampler import Ids, Sample, SampleRequest
from abut.samplers.settings import SamplingKeywords, settings_of
from abut.samplers.vllm_colocate import VLLMColocateSampler
from abut.samplers.vllm_images import (
    PictureNames,
    never_drawn,
    returned_prompt,
    with_placeholders,
)
from abut.samplers.vllm_request import (
    checked_settings,
    refusal_hint,
    room,
    sample_of,
    vllm_settings,
    with_stops,
)

__all__ = ["VLLMColocateSampler", "VLLMServerSampler"]

_PATHS = {"completions": "/v1/completions", "generate": "/inference/v1/generate"}
# What vLLM says of a picture that comes as its name alone, and that it does not know.
_CACHE_MISS = "Cache miss"
# A certain token may come out a little off 0.
_CERTAIN = 1e-3


@stays(
    "it holds connections of this process",
    hint="send the sampler's arguments, and create the sampler in the other process",
)
class VLLMServerSampler:
    """Samples from one vLLM server, or from several that serve the same model.

    An async context manager; the engine enters it for each batch. All requests of a rollout go to
    one server while it is available, and to another one if it is not. The engine limits how many
    requests run at once (`max_requests`) and how long one may take (`turn_timeout_s`). When a
    request is given up, abut closes its connection, so the server stops working on it.

    Images need vLLM 0.30 or later with `--enable-scale-out`. All weights, those of the vision tower
    included, may change only between two batches.

    Args:
        base_urls: `http://host:port`, one or several; `user:password@` becomes a header.
        model: the model's name on the server; None uses the server's first model.
        endpoint: "completions" is `/v1/completions`; "generate" is `/inference/v1/generate`, for
            servers that have only that.
        api_key: sent as a bearer token.
        give_up_s: how many seconds all servers may be unavailable before this is an error.
        on_restart: what to do after a server restarts, because it then has the weights it was
            started with. "resume" continues with a warning; use "raise" if the server gets a
            trainer's weights.
        **sampling: temperature, top_k, top_p, min_p, repetition_penalty and generation_kwargs
            (more sampling settings of vLLM), as in `SamplingSettings`.

    Raises:
        ValueError: with one of the settings, logprobs would not match the sampled tokens, or vLLM
            does not know it.
    """

    def __init__(
        self,
        base_urls: str | Sequence[str],
        *,
        model: str | None = None,
        endpoint: Literal["completions", "generate"] = "completions",
        api_key: str | None = None,
        give_up_s: float = 120.0,
        on_restart: OnRestart = "resume",
        **sampling: Unpack[SamplingKeywords],
    ) -> None:
        urls = (base_urls,) if isinstance(base_urls, str) else tuple(base_urls)
        addresses = [_address(url) for url in urls]
        self.base_urls = tuple(address.url for address in addresses)
        if not urls or len(set(self.base_urls)) < len(urls):
            raise ValueError(
                f"base_urls={self.base_urls!r}: expected one or more different URLs\n"
                "hint: 'http://localhost:8000'"
            )
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        headers = checked_headers("api_key", headers)
        for address in addresses:
            check_one_authorization("api_key", address, headers)
        if endpoint not in _PATHS:
            raise ValueError(f"endpoint={endpoint!r}: expected 'completions' or 'generate'")
        if on_restart not in ("resume", "raise"):
            raise ValueError(f"on_restart={on_restart!r}: expected 'resume' or 'raise'")
        settings = settings_of(sampling)
        self._settings = vllm_settings(settings, to_endpoint=True)
        self._model = model
        self._adapter: Callable[[], str] | None = None
        self._has_adapters = False
        self._lengths: dict[str, int] = {}
        self._path = _PATHS[endpoint]
        self._pictures = PictureNames()
        self._fleet = Fleet(
            addresses,
            self._check,
            headers=headers,
            give_up_s=give_up_s,
            on_restart=on_restart,
        )

    def with_settings(self, **settings: float) -> Self:
        """Return a sampler of the same servers with other sampling settings; for evaluation only.

        Args:
            **settings: temperature (0: the most likely token each time), top_k, top_p, min_p,
                repetition_penalty, presence_penalty, frequency_penalty; the others stay.

        Raises:
            ValueError: vLLM does not accept a setting.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)  # the connections too
        other._settings = self._settings | checked_settings(settings)
        return other

    def ask_for_adapters(self, name: Callable[[], str]) -> None:
        """Look up the adapter of that name for each request, and use it if the server has it.

        For trainers that publish an adapter under a new name with each version.
        """
        self._adapter = name

    @property
    def max_context_tokens(self) -> int | None:
        """The most tokens of prompt and sample together; None until a server was asked."""
        return min(self._lengths.values(), default=None)

    @property
    def takes_images(self) -> bool:
        """True; a server whose model does not accept images refuses such requests."""
        return True

    async def __aenter__(self) -> Self:
        """Open connections and wait until a server is available.

        Raises:
            SamplerError: no server is available, or one serves another model or returns other
                logprobs.
        """
        self._pictures.begin()
        await self._fleet.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections."""
        await self._fleet.__aexit__(*exc)

    def forget(self, rollout_id: str) -> None:
        """Note that a rollout has ended."""
        self._fleet.forget(rollout_id)
        self._pictures.forget(rollout_id)

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn.

        Raises:
            SamplerError: a server refused the request or gave a wrong answer, or no server is
                available.
        """
        tokens = room(
            request,
            self.max_context_tokens,
            holder="the server",
            longer="start the server with a longer --max-model-len",
        )
        sampling = never_drawn(self._settings, request) | {
            "max_tokens": tokens,
            "seed": request.seed,
            "stop_token_ids": list(request.stop_token_ids),
        }
        path = _PATHS["generate"] if request.images else self._path
        stops = with_stops(self._settings.get("stop"), request.stop)
        if request.stop:
            sampling["stop"] = stops
        pauses_s = backoff(0.05, 2.0)
        while True:
            server, content = await self._ask(request, path, sampling, tokens)
            try:
                choice = _only_choice(content)
                if choice.finish_reason != "abort":
                    sample = self._sample(choice, request, path, content)
                    return await self._with_stop(sample, request, stops, path)
            except SamplerError as error:
                raise SamplerError(
                    f"{request.where}: the server at {server.url}: {error}"
                ) from error
            # Paused. It holds what it is asked now until it is resumed.
            await asyncio.sleep(next(pauses_s))

    async def _ask(
        self, request: SampleRequest, path: str, sampling: dict[str, Any], tokens: int
    ) -> tuple[FleetServer, bytes]:
        """Send a request; if the server no longer has an image, send it again with all images."""
        while True:
            by_name = bool(request.images) and self._pictures.knows(request)
            if request.images:
                # A screenshot takes milliseconds as PNG and base64.
                body = await asyncio.to_thread(self._body_with_images, request, sampling)
            else:
                body = self._body(path, request.prompt_ids.tolist(), sampling, adapts=True)
            size = len(request.prompt_ids) + tokens
            try:
                answer = await self._fleet.ask(request.rollout_id, path, body, tokens=size)
            except Refused as error:
                if by_name and _CACHE_MISS in error.said:
                    self._pictures.forget(request.rollout_id)
                    continue
                raise SamplerError(f"{request.where}: {error}{_hint(error)}") from error
            if request.images:
                self._pictures.took(request)
            return answer

    def _sample(self, choice: Choice, request: SampleRequest, path: str, content: bytes) -> Sample:
        # /inference/v1/generate does not repeat it, unless it is asked to; the other one does.
        seen: Ids | list[int] | None = choice.prompt_token_ids
        if request.images:
            seen = returned_prompt(content)
        elif seen is None and path == _PATHS["completions"]:
            seen = np.empty(0, np.int64)
        return sample_of(
            request,
            prompt_ids=seen,
            ids=choice.token_ids,
            logprobs=choice.logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )

    async def _with_stop(
        self, sample: Sample, request: SampleRequest, stops: list[str], path: str
    ) -> Sample:
        """Return a sample with the stop string that ended it, if the answer does not name it.

        Raises:
            SamplerError: the server did not return the text of the sample.
        """
        if not stops or path != _PATHS["generate"] or sample.finish_reason != "stop":
            return sample
        ids = sample.ids.tolist()
        if ids and ids[-1] in request.stop_token_ids:
            ids.pop()  # vLLM looks for no stop string in the text of a stop token
        body = json.dumps({"model": self._model, "tokens": ids}).encode()
        try:
            _, content = await self._fleet.ask(
                request.rollout_id, "/detokenize", body, tokens=len(ids)
            )
            text = str(json.loads(content)["prompt"])
        except (Refused, ValueError, KeyError, TypeError) as error:
            raise SamplerError(
                "/detokenize did not return the text of a sample, which may have ended with one "
                f"of the stop strings {stops}: {error}"
            ) from error
        # As vLLM does: the first of them in this order that the last token has completed.
        return replace(sample, stop_string=next((stop for stop in stops if stop in text), None))

    def _body_with_images(self, request: SampleRequest, sampling: dict[str, Any]) -> bytes:
        more = {
            "content_parts": self._pictures.content_parts(request),
            "return_token_ids": True,
        }
        path = _PATHS["generate"]
        return self._body(path, with_placeholders(request), sampling, adapts=True, more=more)

    def _body(
        self,
        path: str,
        prompt_ids: list[int],
        sampling: dict[str, Any],
        *,
        adapts: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> bytes:
        model = self._model
        if adapts and self._has_adapters and self._adapter is not None:
            model = self._adapter()
        # A text that skipped special tokens would hide them from stop strings.
        sampling = sampling | {"logprobs": 0, "skip_special_tokens": False}
        if path == _PATHS["generate"]:
            body = {"model": model, "token_ids": prompt_ids, "sampling_params": sampling}
            body |= more or {}
        else:
            body = sampling | {
                "model": model,
                "prompt": prompt_ids,
                "return_token_ids": True,
                # Possible for a server without a tokenizer, and no work for the others.
                "return_tokens_as_token_ids": True,
            }
        return json.dumps(body).encode()

    async def _check(self, server: FleetServer) -> None:
        """Check which model a server serves and which logprobs it returns."""
        try:
            models = json.loads(await self._fleet.send(server, "/v1/models"))["data"]
            served = {model["id"]: model.get("max_model_len") for model in models}
        except Refused as error:
            raise SamplerError(f"{error}{_hint(error)}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SamplerError(
                f"the server at {server.url} does not list its models as vLLM does\n"
                "hint: base_urls are the addresses of `vllm serve`"
            ) from error
        self._has_adapters = self._adapter is not None and self._adapter() in served
        if self._model is None:
            self._model = next(iter(served), None)  # the first server that answers decides for all
        if self._model not in served:
            raise SamplerError(
                f"the server at {server.url} does not serve the model {self._model!r}; it serves "
                f"{', '.join(map(repr, served)) or 'none'}\n"
                "hint: model=None uses the server's first model; `vllm serve --served-model-name` "
                "renames a model"
            )
        if served[self._model] is not None:
            self._lengths[server.url] = served[self._model]
        await asyncio.gather(self._probe(server, 0), self._probe(server, 1))

    async def _probe(self, server: FleetServer, id_: int) -> None:
        """Check that logprobs include filters, by allowing only one token: its logprob must be 0.

        Before filters, the logprob depends on the model, and cannot be 0 for both of two tokens.
        """
        body = self._body(
            self._path, [0], {"max_tokens": 1, "temperature": 1.0, "allowed_token_ids": [id_]}
        )
        try:
            choice = _only_choice(await self._fleet.send(server, self._path, body))
        except Refused as error:
            raise SamplerError(f"{error}{_hint(error)}") from error
        except SamplerError as error:
            raise SamplerError(f"the server at {server.url}: {error}") from error
        if choice.finish_reason == "abort":
            raise Unavailable("is paused and aborts requests")
        if choice.token_ids.tolist() != [id_] or abs(choice.logprobs[0]) > _CERTAIN:
            raise SamplerError(
                f"the server at {server.url} returns logprobs from before temperature and filters: "
                f"token {id_}, the only one allowed, has {choice.logprobs[0]:.4g} instead of 0\n"
                "hint: start the server with --logprobs-mode processed_logprobs"
            )


def _address(url: str) -> Address:
    try:
        address = Address.of(url)
    except ValueError as error:
        raise ValueError(f"base_urls: {error}") from None
    return replace(address, url=address.url.removesuffix("/v1"))


def _only_choice(content: bytes) -> Choice:
    choices = read_completions(content)
    if len(choices) != 1:
        raise SamplerError(f"the answer has {len(choices)} choices, but 1 was requested")
    return choices[0]


def _hint(error: Refused) -> str:
    if hint := refusal_hint(error.said):
        return hint
    if error.status in (401, 403):
        return "\nhint: pass api_key=…"
    if error.status == 404 and error.path == _PATHS["generate"]:
        return "\nhint: start vLLM with --enable-scale-out, or pass endpoint='completions'"
    if error.status == 404 and error.path == "/v1/models":
        return (
            "\nhint: this sampler is for `vllm serve`; for TRL's own server up to 1.10, use "
            "TRLServerSampler"
        )
    return ""
