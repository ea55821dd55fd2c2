"""A task: what a rollout starts from, and the source of its environment."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

from abut.envs.env import AnyEnv
from abut.messages import Message
from abut.processor import PartsProcessor
from abut.removed import with_removed


@runtime_checkable
class EnvPool(Protocol):
    """A pool of environments that are few or expensive to create; rollouts wait for a free one.

    The wait does not count towards the limits of a rollout or a reset.
    """

    async def lend(self, task: "RolloutTask") -> AnyEnv:
        """Wait for an environment that no other rollout uses; its `close()` returns it to the pool.

        Runs on the event loop of all rollouts, so it must not block. If it is cancelled, it must
        not keep an environment. A synchronous environment is always played on the same thread, from
        `reset` to `close`, so create objects that are bound to a thread in `reset`.
        """
        ...


EnvFactory: TypeAlias = Callable[[], AnyEnv]
Tools: TypeAlias = Sequence[Mapping[str, Any]]


class Bound(Protocol):
    """A source that is bound to a processor."""

    def complete(self, task: "RolloutTask") -> "RolloutTask":
        """Return the task with the player or factory that plays it as its source."""
        ...


@runtime_checkable
class EnvSource(Protocol):
    """Environments created for a task; `bind_all` adds the factory to the task."""

    @property
    def tools(self) -> Tools:
        """JSON schemas that the chat template shows to the policy."""
        ...

    def bind(self, processor: PartsProcessor) -> Bound:
        """Bind the source to the processor that writes the conversations.

        Raises:
            TypeError: the processor cannot read tool calls.
            TemplateError: its template does not write tool calls, show tools, or accept results.
        """
        ...


class RolloutPlayer:
    """Base of `abut.rollout.player.AgentPlayer`, which plays rollouts without an environment."""


Source: TypeAlias = EnvFactory | EnvPool | EnvSource | RolloutPlayer
"""The source of a task's environment, or a player that needs none.

A task has an `EnvSource` only until it is bound, so the engine never gets one.
"""


@with_removed
@dataclass(frozen=True)
class RolloutTask:
    """A task, from which one rollout starts."""

    index: int
    """Position in the batch, and so the number of its row."""
    rollout_id: str
    source: Source
    messages: Sequence[Message]
    """The history before the environment's first reply; may be empty."""
    seed: str
    """The argument of `reset`."""
    episode_seed: int
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the dataset's row."""
    group: int = 0
    """The number of its group, counted over ranks and batches: the rollouts of one prompt."""
    member: int = 0
    """Position in its group, counted over all ranks."""
    sample_key: str | None = None
    """The seeds of its samples are derived from this; None: from `rollout_id`."""
    whole_group: bool = True
    """False if other ranks play a part of its group."""
    run_id: str = ""
    """The id of the training run, the same for all of its rollouts."""
    step: int | None = None
    """The trainer's step, if there is a trainer."""
    mode: Literal["train", "eval"] = "train"
    environment: str | None = None
    """The name of its environment, if you train on a dict of environments."""
    removed_columns: Sequence[str] = ()
    """The columns that the trainer removed from the row, so that no environment can have them."""
    processor: PartsProcessor | None = None
    """The processor that writes its conversation; None: the engine's."""

    @property
    def pool(self) -> EnvPool | None:
        """The pool that lends its environment; None: `factory` creates it."""
        return self.source if is_pool(self.source) else None

    @property
    def factory(self) -> EnvFactory:
        """The function that creates its environment.

        Raises:
            TypeError: its source is not a factory.
        """
        if not callable(self.source):
            raise TypeError(f"{type(self.source).__name__} cannot create an environment")
        return self.source


def is_pool(env: Any) -> TypeGuard[EnvPool]:
    """Return whether an object is a pool; the class of a pool is not."""
    return isinstance(env, EnvPool) and not inspect.isclass(env)
