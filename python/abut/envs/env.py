"""The protocols of environments: `Env`, `AsyncEnv`, and what a type checker accepts as one.

An env never sees tokens. `reset` and `step` return `(env, reply)`: the environment for the next
step (usually `self`) and its reply, a string (a user turn) or a list of messages (`role: tool`, …).

Invariant: a class that abut can play passes `mypy --strict`. So the `Accepted…` protocols require
only what the guards in `guarded` require, which is less than `Env` and `AsyncEnv`: attributes may
be read-only or wider (`reward: float | None`), parameters may have any name, and `reset` may
require columns of the dataset, which a protocol cannot list.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from abut.messages import Message

T = TypeVar("T")
Reply: TypeAlias = str | list[Message]


@runtime_checkable
class Env(Protocol):
    """A synchronous environment, which runs on one thread from its constructor to `close`.

    abut makes all calls and reads all attributes on that thread, so the environment may hold
    objects that are bound to a thread: a SQLite connection, an event loop, Playwright's synchronous
    API. It is not the main thread, so `signal.signal` raises an error.

    `reset` may take more keywords: `episode_seed` (an int that the rollouts of a group share), any
    column of the dataset, and any key of the mapping `row` in the prompt's last message. If the
    environment has a method `close()`, abut calls it at the end. If a step hangs, `close` is called
    when the step returns, or never if the step never returns, because a thread cannot be ended.

    To score whole episodes, add a method `score_episode(messages)`. abut calls it once after the
    episode has ended for any reason, with all messages of the episode, and it sets `reward`.

    For more values than one reward, add an attribute `extras`: a dict from names to numbers,
    strings or None. abut reads it after `reset`, each step and `score_episode`; the last reading
    counts. Reward functions get the entries as columns, and `Rollout.extras` and records keep them.
    If a name has a slash, abut logs the mean of its numbers.
    """

    reward: float
    """The reward of the episode so far."""
    alive: bool
    """False as soon as the episode has ended."""

    def reset(self, seed: str) -> tuple[Self, Reply]:
        """Begin an episode."""
        ...

    def step(self, action: str) -> tuple[Self, Reply]:
        """Answer one action of the policy."""
        ...


@runtime_checkable
class AsyncEnv(Protocol):
    """An asynchronous environment, accepted wherever an `Env` is.

    All asynchronous environments and agents share one event loop. If a class blocks that loop for a
    second, abut logs a warning and runs the class on a separate loop from its next attempt.
    `close()` may be a coroutine too.
    """

    reward: float
    """The reward of the episode so far."""
    alive: bool
    """False as soon as the episode has ended."""

    async def reset(self, seed: str) -> tuple[Self, Reply]:
        """Begin an episode."""
        ...

    async def step(self, action: str) -> tuple[Self, Reply]:
        """Answer one action of the policy."""
        ...


class EnvLoop(Protocol):
    """An event loop on a separate thread, on which asynchronous environments are played."""

    def ask(self, call: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Run a coroutine here and return a future; `EnvError` if this loop has ended."""
        ...


class LoopBound:
    """Base of abut's own `AsyncEnv`s that live on another loop than the engine's, with sockets.

    The engine plays them on that loop, which saves two thread switches for each call. This is a
    base class, not an attribute that any environment may have, because an object that wraps an
    environment passes on its attributes, and the user's code must not run on that loop.
    """

    loop: EnvLoop


AcceptedReply: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A list of messages of any type; `list[Message]` would refuse a list of TypedDicts."""


class AcceptedEnv(Protocol):
    """A class that can be played as an `Env`."""

    @property
    def reward(self) -> float | None:
        """The reward of the episode so far; None means no score."""
        ...

    @property
    def alive(self) -> bool:
        """True until the episode has ended."""
        ...

    @property
    def reset(self) -> Callable[..., tuple["AcceptedEnv", AcceptedReply]]:
        """Begin an episode; gets the seed and the other arguments that the signature names."""
        ...

    def step(self, action: str, /) -> tuple["AcceptedEnv", AcceptedReply]:
        """Answer one action of the policy."""
        ...


class AcceptedAsyncEnv(Protocol):
    """A class that can be played as an `AsyncEnv`."""

    @property
    def reward(self) -> float | None:
        """The reward of the episode so far; None means no score."""
        ...

    @property
    def alive(self) -> bool:
        """True until the episode has ended."""
        ...

    @property
    def reset(self) -> Callable[..., Awaitable[tuple["AcceptedAsyncEnv", AcceptedReply]]]:
        """Begin an episode; gets the seed and the other arguments that the signature names."""
        ...

    def step(self, action: str, /) -> Awaitable[tuple["AcceptedAsyncEnv", AcceptedReply]]:
        """Answer one action of the policy."""
        ...


class AcceptedForTRL(Protocol):
    """A class for `GRPOTrainer(environment_factory=…)`, whose other methods are tools.

    It differs from an environment without `step` in that its `reset` returns text for the prompt.
    """

    @property
    def reset(self) -> Callable[..., "Said | Awaitable[Said]"]:
        """Begin an episode; called with the columns that the signature names."""
        ...


Said: TypeAlias = str | list[Any] | None
"""A string, a list of text blocks, or None."""

AnyEnv: TypeAlias = AcceptedEnv | AcceptedAsyncEnv
