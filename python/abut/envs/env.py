"""The protocols of environments: `Env`, `AsyncEnv`, and what a type checker accepts as one.

An env never sees tokens. `reset` and `step` return `(env, reply)`: the environment that goes on
(usually itself) and its reply, a string (a user turn) or a list of messages (`role: tool`, …).

Invariant: a class that is played without an error passes `mypy --strict`. So the `Accepted…`
protocols ask for as little as the guards in `guarded` do, and for less than `Env` and `AsyncEnv`,
which are what an environment should be: attributes may be read-only, or wider
(`reward: float | None`), parameters have any name, and `reset` may demand columns of the dataset,
which no protocol can list.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from abut.messages import Message

T = TypeVar("T")
Reply: TypeAlias = str | list[Message]


@runtime_checkable
class Env(Protocol):
    """A synchronous environment, on a thread of its own from its constructor to `close`.

    All calls run there, and its attributes are looked at there, so it may hold what belongs to a
    thread: a SQLite connection, an event loop, Playwright's synchronous API. It is no main thread:
    `signal.signal` raises there.

    `reset` may take more keywords: `episode_seed` (an int that the rollouts of a group share), any
    column of the dataset, and any key of the mapping `row` in the prompt's last message. `close()`
    is called at the end where it exists. After a step that hangs it follows when that returns, or
    never where that never does: a thread cannot be ended.

    An environment that scores whole episodes has `score_episode(messages)`: called once after the
    last step, whatever ended the episode, with all its messages, to set `reward`.

    An environment with more to say than one number has `extras`, a dict of numbers, texts and None
    by name, which abut reads after `reset`, each step and `score_episode`; the last reading counts.
    Reward functions get them as columns, `Rollout.extras` and records keep them, and if a name has
    a slash, abut logs the mean of its numbers.
    """

    reward: float
    alive: bool

    def reset(self, seed: str) -> tuple[Self, Reply]:
        """Begin an episode."""
        ...

    def step(self, action: str) -> tuple[Self, Reply]:
        """Answer one action of the policy."""
        ...


@runtime_checkable
class AsyncEnv(Protocol):
    """The asynchronous twin of `Env`, accepted wherever it is.

    All of them share one event loop with asynchronous agents. If a class blocks the loop for a
    second, abut logs it, and the class has a loop of its own from its next attempt. `close()` may
    be a coroutine too.
    """

    reward: float
    alive: bool

    async def reset(self, seed: str) -> tuple[Self, Reply]:
        """Begin an episode."""
        ...

    async def step(self, action: str) -> tuple[Self, Reply]:
        """Answer one action of the policy."""
        ...


class EnvLoop(Protocol):
    """An event loop, on a thread of its own, on which asynchronous environments are played."""

    def ask(self, call: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Run it, and return a future of the running loop; `EnvError` if this loop has ended."""
        ...


class LoopBound:
    """A base of abut's own `AsyncEnv`s that live on another loop than the engine's, with sockets.

    The engine plays it right there, which spares each call two crossings between threads. A base,
    not an attribute that any environment may have: what wraps one passes on its attributes, and
    must not get the code of the user onto that loop.
    """

    loop: EnvLoop


AcceptedReply: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A list of any kind of messages: a `list[Message]` would refuse one of TypedDicts."""


class AcceptedEnv(Protocol):
    """A class that can be played as an `Env`."""

    @property
    def reward(self) -> float | None:
        """Of the episode so far; None is no score."""
        ...

    @property
    def alive(self) -> bool:
        """True while the episode goes on."""
        ...

    @property
    def reset(self) -> Callable[..., tuple["AcceptedEnv", AcceptedReply]]:
        """Begins an episode; called with the seed, and with what else it names."""
        ...

    def step(self, action: str, /) -> tuple["AcceptedEnv", AcceptedReply]:
        """Answer one action of the policy."""
        ...


class AcceptedAsyncEnv(Protocol):
    """A class that can be played as an `AsyncEnv`."""

    @property
    def reward(self) -> float | None:
        """Of the episode so far; None is no score."""
        ...

    @property
    def alive(self) -> bool:
        """True while the episode goes on."""
        ...

    @property
    def reset(self) -> Callable[..., Awaitable[tuple["AcceptedAsyncEnv", AcceptedReply]]]:
        """Begins an episode; called with the seed, and with what else it names."""
        ...

    def step(self, action: str, /) -> Awaitable[tuple["AcceptedAsyncEnv", AcceptedReply]]:
        """Answer one action of the policy."""
        ...


class AcceptedForTRL(Protocol):
    """A class for `GRPOTrainer(environment_factory=…)`, whose other methods are tools.

    What `reset` returns tells it from an environment that lacks `step`: text for the prompt.
    """

    @property
    def reset(self) -> Callable[..., "Said | Awaitable[Said]"]:
        """Begins an episode; called with the columns that it names."""
        ...


Said: TypeAlias = str | list[Any] | None
"""A text, a list of text blocks, or nothing."""

AnyEnv: TypeAlias = AcceptedEnv | AcceptedAsyncEnv
