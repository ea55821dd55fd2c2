"""Samplers draw tokens from the policy.

A sampler never sees text. It gets the ids of a request and returns the ids that it sampled, each
with its own logprob under the distribution it was drawn from, the stop token included.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from abut.errors import SamplerError
from abut.images import ImageSpan
from abut.messages import Message

Ids: TypeAlias = NDArray[np.int64]
Logprobs: TypeAlias = NDArray[np.float32]

VERSIONS = "versions"
"""The stream that says which weights sampled each token, `(T,)` int64. Nobody has to ask for it."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One turn of one rollout."""

    prompt_ids: Ids
    """`(T,)` int64, read-only: all ids of the trajectory so far. `torch.tensor(ids)` copies it."""
    max_tokens: int
    """At most so many sampled tokens."""
    stop_token_ids: tuple[int, ...]
    """A sampled token of these ends the turn and is part of the sample."""
    seed: int
    """Own seed of this turn."""
    rollout_id: str
    turn: int
    stop: tuple[str, ...] = ()
    """A sample that spells one of these ends with the token that completes it; so does one that
    spells a stop string of the sampler's own settings."""
    images: tuple[ImageSpan, ...] = ()
    """All images in `prompt_ids`, in order: their tokens stand there already. Only an
    `ImageSampler` with `takes_images` gets any."""
    never_token_ids: tuple[int, ...] = ()
    """Tokens that must not be drawn: their probability is 0, in the logprobs too."""
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
        """For the other ranks of an engine, without what needs the conversation."""
        passed = [f.name for f in fields(self) if f.name not in ("messages", "tools", "ids_of")]
        return SampleRequest, tuple(getattr(self, name) for name in passed)

    @property
    def where(self) -> str:
        """The turn, for errors: `rollout r0, turn 3`."""
        return f"rollout {self.rollout_id}, turn {self.turn}"


@dataclass(frozen=True, slots=True)
class Sample:
    """The tokens that were sampled for one request."""

    ids: Ids
    """`(T,)` int64, verbatim."""
    logprobs: Logprobs
    """`(T,)` float32, nats, aligned with `ids`."""
    finish_reason: Literal["stop", "length"]
    """`stop`: ended on a stop token or a stop string; `length`: cut by `max_tokens`."""
    stop_string: str | None = None
    """The stop string on which it ended. `ids` are whole: with the token that it begins inside, and
    with what stands behind it."""
    model_version: str | None = None
    """Of the weights that sampled it, where the sampler knows; it is recorded."""
    streams: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays along the tokens by name, each `(T, …)` of numbers. Those that nobody asked for are
    dropped. `versions` is always kept: the number of the weights that sampled each token, where the
    sampler knows. Without it the engine's continuous mode fills it in: with the oldest weights that
    can have sampled the token, where they change while it is sampled."""
    in_words: bool = False
    """True: a template wrote the answer of a policy whose tokens nobody knows. Its length is not
    limited, and nothing of its rollout is trained."""
    newest_version: int | None = None
    """Filled in by the engine: the weights that sampled when the answer came."""


@runtime_checkable
class Sampler(Protocol):
    """Draws one turn at a time; many calls run at once on the engine's event loop.

    A sampler of any kind may do more: see `BoundedSampler` and `ForgettingSampler`. One that is
    also an async context manager is entered on that loop for each batch.
    """

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn."""
        ...


@runtime_checkable
class BatchSampler(Protocol):
    """Draws many turns in one call, on the thread that called the engine (in-process models).

    If it is also a context manager, as a `StreamSampler` may be too, it is entered for each batch
    of rollouts.
    """

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Sample one turn for each request, in order."""
        ...


@runtime_checkable
class BoundedSampler(Protocol):
    """A sampler that holds only so many tokens of prompt and completion together."""

    @property
    def max_context_tokens(self) -> int | None:
        """May be None until the sampler has learned it; read before each turn."""
        ...


@runtime_checkable
class ImageSampler(Protocol):
    """A sampler that says whether it honours `SampleRequest.images` and `never_token_ids`."""

    @property
    def takes_images(self) -> bool:
        """False, and a sampler without it: a request with images is a `TypeError`."""
        ...


@runtime_checkable
class ForgettingSampler(Protocol):
    """A sampler that keeps something of a rollout from turn to turn."""

    def forget(self, rollout_id: str) -> None:
        """Drop it: an attempt at the rollout is over. Called on the engine's event loop."""
        ...


def check_sample(sample: object, request: SampleRequest) -> Sample:
    """Return the sample, with the streams that were asked for, if it answers the request.

    Raises:
        SamplerError: it is not a `Sample`, is longer than was asked for, or lacks a stream; or a
            stream has another length or holds no numbers.
    """
    said = f"{request.where}: the sampler returned"
    if not isinstance(sample, Sample):
        raise SamplerError(f"{said} {type(sample).__name__}, not a Sample")
    if len(sample.ids) > request.max_tokens and not sample.in_words:
        raise SamplerError(f"{said} {len(sample.ids)} tokens, {request.max_tokens} allowed")
    if not (sample.streams or request.streams):
        return sample
    if missing := [name for name in request.streams if name not in sample.streams]:
        raise SamplerError(
            f"{said} no stream {missing[0]!r}, which RolloutConfig.streams names\n"
            "hint: leave the name out, or take a sampler whose Sample.streams has it"
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
                "hint: the first dimension of a stream is that of ids"
            )
        if values.dtype.kind not in "biuf":
            raise SamplerError(
                f"{said} a stream {name!r} of {values.dtype}, which is no type of numbers"
            )
    return replace(sample, streams=kept)
