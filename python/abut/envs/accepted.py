"""What a type checker takes for an environment: as much as the guards in `foreign` let play.

Invariant: a class that is played without an error passes `mypy --strict`. So these ask for less
than `abut.Env` and `abut.AsyncEnv`, which are what an environment should be: attributes may be
read-only, or wider (`reward: float | None`), parameters have any name, and `reset` may demand
columns of the dataset, which no protocol can list.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

AcceptedReply: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A list of any kind of messages: a `list[Message]` would refuse one of TypedDicts."""


class AcceptedEnv(Protocol):
    """What is played as an `Env`."""

    @property
    def reward(self) -> float | None:
        """Of the episode so far; None is no score."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the episode goes on."""
        ...

    @property
    def reset(self) -> Callable[..., tuple["AcceptedEnv", AcceptedReply]]:
        """Begins an episode; called with the seed, and with what else it names."""
        ...

    def step(self, action: str, /) -> tuple["AcceptedEnv", AcceptedReply]:
        """Answer one action of the policy."""
        ...


class AcceptedAsyncEnv(Protocol):
    """What is played as an `AsyncEnv`."""

    @property
    def reward(self) -> float | None:
        """Of the episode so far; None is no score."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the episode goes on."""
        ...

    @property
    def reset(self) -> Callable[..., Awaitable[tuple["AcceptedAsyncEnv", AcceptedReply]]]:
        """Begins an episode; called with the seed, and with what else it names."""
        ...

    def step(self, action: str, /) -> Awaitable[tuple["AcceptedAsyncEnv", AcceptedReply]]:
        """Answer one action of the policy."""
        ...


class AcceptedForTRL(Protocol):
    """What `GRPOTrainer(environment_factory=…)` takes, whose other methods are tools.

    What `reset` returns tells it from an environment that lacks `step`: text for the prompt.
    """

    @property
    def reset(self) -> Callable[..., "Said | Awaitable[Said]"]:
        """Begins an episode; called with the columns that it names."""
        ...


Said: TypeAlias = str | list[Any] | None
"""A text, a list of text blocks, or nothing."""

AnyEnv: TypeAlias = AcceptedEnv | AcceptedAsyncEnv
