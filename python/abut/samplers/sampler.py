"""The protocols of samplers, which draw tokens from the policy.

A sampler never sees text. It gets the ids of a request and returns the sampled ids, each with its
logprob under the distribution it was drawn from, the stop token included.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from abut.errors import SamplerError
from abut.images import ImageSpan
from abut.messages import Message
from abut.removed import with_removed

Ids: TypeAlias = NDArray[np.int64]
Logprobs: TypeAlias = NDArray[np.float32]

VERSIONS = "versions"
"""The stream with the version of the weights that sampled each token, `(T,)` int64; always kept."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request for one turn of one rollout."""

    prompt_ids: Ids
    """`(T,)` int64, read-only: all ids of the trajectory so far. `torch.tensor(ids)` copies it."""
    max_tokens: int
    """The most tokens to sample."""
    stop_token_ids: tuple[int, ...]
    """Tokens that end the turn; the one that is sampled is part of the sample."""
    seed: int
    """The turn's own seed."""
    rollout_id: str
    """The id of the rollout."""
    turn: int
    """The number of the turn, from 0."""
    stop: tuple[str, ...] = ()
    """Strings that end the turn: the sample ends with the token that completes one of them. Stop
    strings of the sampler's own settings end it too."""
    images: tuple[ImageSpan, ...] = ()
    """The images in `prompt_ids`, in order; their tokens are already in the prompt. Only an
    `ImageSampler` with `takes_images` gets images."""
    never_token_ids: tuple[int, ...] = ()
    """Tokens that must not be drawn; logprobs are computed without them."""
    streams: tuple[str, ...] = ()
    """The names that `Sample.streams` must have, from `RolloutConfig.streams`."""
    messages: Callable[[], Sequence[Message]] = field(default=list, compare=False, repr=False)
    """Returns the conversation so far, for samplers that answer with messages."""
    tools: Sequence[Mapping[str, Any]] = field(default=(), compare=False, repr=False)
    """JSON schemas of the tools that the policy can call."""
    ids_of: Callable[[Message], Ids] | None = field(default=None, compare=False, repr=False)
    """Returns the ids of a message as the chat template writes it, its stop token included; raises
    a TemplateError if the template does not write such a message."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the request for other ranks, without the parts that need the conversation."""
        passed = [f.name for f in fields(self) if f.name not in ("messages", "tools", "ids_of")]
        return SampleRequest, tuple(getattr(self, name) for name in passed)

    @property
    def where(self) -> str:
        """The turn, for errors: `rollout r0, turn 3`."""
        return f"rollout {self.rollout_id}, turn {self.turn}"


@with_removed
@dataclass(frozen=True, slots=True)
class Sample:
    """The tokens sampled for one request."""

    ids: Ids
    """`(T,)` int64: the sampled ids, unchanged."""
    logprobs: Logprobs
    """`(T,)` float32, nats, aligned with `ids`."""
    finish_reason: Literal["stop", "length"]
    """`stop`: ended by a stop token or stop string; `length`: cut at `max_tokens`."""
    stop_string: str | None = None
    """The stop string that ended the sample. `ids` are not cut: they include the token in which the
    string begins, and all text after it."""
    model_version: str | None = None
    """The version of the weights, if the sampler knows it; it is recorded."""
    streams: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Numeric arrays along the tokens by name, each of shape `(T, …)`. Streams that the request
    does not name are dropped. `versions` is always kept: the version of the weights that sampled
    each token, if the sampler knows it. Otherwise the engine's continuous mode fills it in, with
    the oldest weights that can have sampled the token if they change meanwhile."""
    in_words: bool = False
    """True if a template wrote these tokens, because the policy answered in text. The length is not
    limited, and the rollout is not trained."""
    newest_version: int | None = None
    """The version of the weights when the answer came; the engine fills it in."""


@runtime_checkable
class Sampler(Protocol):
    """A sampler that draws one turn per call; many calls run at once on the engine's event loop.

    Any sampler may also be a `BoundedSampler` or a `ForgettingSampler`. If it is an async context
    manager, the engine enters it on that loop for each batch.
    """

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn."""
        ...


@runtime_checkable
class BatchSampler(Protocol):
    """A sampler that draws many turns in one call, on the thread that called the engine.

    For models in this process. If it is also a context manager, as a `StreamSampler` may be too,
    the engine enters it for each batch of rollouts.
    """

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Sample one turn for each request, in order."""
        ...


@runtime_checkable
class BoundedSampler(Protocol):
    """A sampler with a limit for prompt and completion together."""

    @property
    def max_context_tokens(self) -> int | None:
        """The limit in tokens, read before each turn; None until the sampler knows it."""
        ...


@runtime_checkable
class ImageSampler(Protocol):
    """A sampler that says whether it uses `SampleRequest.images` and `never_token_ids`."""

    @property
    def takes_images(self) -> bool:
        """True if the sampler accepts images; else a request with images raises `TypeError`."""
        ...


@runtime_checkable
class ForgettingSampler(Protocol):
    """A sampler that keeps state of a rollout from turn to turn."""

    def forget(self, rollout_id: str) -> None:
        """Drop the state of an ended attempt at a rollout; called on the engine's event loop."""
        ...


def check_sample(sample: object, request: SampleRequest) -> Sample:
    """Check that a sample answers its request; return it with only the requested streams.

    Raises:
        SamplerError: the value is not a `Sample`, is longer than requested, or lacks a stream; or a
            stream has another length or is not numeric.
    """
    said = f"{request.where}: the sampler returned"
    if not isinstance(sample, Sample):
        raise SamplerError(f"{said} {type(sample).__name__}, not a Sample")
    if len(sample.ids) > request.max_tokens and not sample.in_words:
        raise SamplerError(
            f"{said} {len(sample.ids)} tokens, but the request allows {request.max_tokens}"
        )
    if not (sample.streams or request.streams):
        return sample
    if missing := [name for name in request.streams if name not in sample.streams]:
        raise SamplerError(
            f"{said} a sample without the stream {missing[0]!r}, which RolloutConfig.streams "
            "names\n"
            "hint: remove the name, or use a sampler whose Sample.streams has it"
        )
    kept = {
        name: np.asarray(values)
        for name, values in sample.streams.items()
        if name == VERSIONS or name in request.streams
    }
    for name, values in kept.items():
        if values.ndim == 0 or len(values) != len(sample.ids):
            raise SamplerError(
                f"{said} {len(sample.ids)} tokens and a stream {name!r} of shape {values.shape}\n"
                "hint: a stream's first dimension must be as long as ids"
            )
        if values.dtype.kind not in "biuf":
            raise SamplerError(
                f"{said} a stream {name!r} of dtype {values.dtype}, which is not numeric"
            )
    return replace(sample, streams=kept)
