"""A task: what a rollout starts from, and the source of its environment."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

from abut.envs.env import AnyEnv
from abut.messages import Message
from abut.processor import PartsProcessor


@runtime_checkable
class EnvPool(Protocol):
    """Environments that are few, or dear to make: rollouts wait in line for one.

    Waiting takes as long as other rollouts play, so no limit of a rollout or a reset counts it.
    """

    async def lend(self, task: "RolloutTask") -> AnyEnv:
        """Wait for an environment that no other rollout has; its `close()` gives it back.

        Runs on the loop that all rollouts wait on, so it must not block. Where it is cancelled,
        it keeps nothing. A synchronous environment is played on the same thread each time that it
        is lent, from `reset` to `close`, as long as it lives: what belongs to a thread is made in
        `reset`.
        """
        ...


EnvFactory: TypeAlias = Callable[[], AnyEnv]
Tools: TypeAlias = Sequence[Mapping[str, Any]]


class Bound(Protocol):
    """A source, bound to a processor."""

    def complete(self, task: "RolloutTask") -> "RolloutTask":
        """Return the task with what plays it as its source."""
        ...


@runtime_checkable
class EnvSource(Protocol):
    """Environments that are made for a task; `bind_all` puts what plays it in the task."""

    @property
    def tools(self) -> Tools:
        """JSON schemas, which the chat template shows to the policy."""
        ...

    def bind(self, processor: PartsProcessor) -> Bound:
        """Return what plays tasks, in conversations that `processor` writes.

        Raises:
            TypeError: the processor cannot read tool calls.
            TemplateError: its template writes none, shows no tools, or takes no results of them.
        """
        ...


class RolloutPlayer:
    """Base of `abut.rollout.player.AgentPlayer`, which plays rollouts without an environment."""


Source: TypeAlias = EnvFactory | EnvPool | EnvSource | RolloutPlayer
"""Where the environment of a task comes from, or what plays the task without one.

An `EnvSource` stands in a task only until it is bound; the engine never meets one.
"""


@dataclass(frozen=True)
class RolloutTask:
    """A task, from which one rollout starts."""

    index: int
    """Position in the batch: the row that it becomes."""
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
    """Which one of its group it is, over all ranks."""
    sample_key: str | None = None
    """The seeds of its samples are made of this; None takes `rollout_id`."""
    whole_group: bool = True
    """False if a rank's slice cuts its group, so that others play the rest."""
    run_id: str = ""
    """The id of the training run, the same for all of its rollouts."""
    step: int | None = None
    """The trainer's step, if there is a trainer."""
    mode: Literal["train", "eval"] = "train"
    environment: str | None = None
    """The name of its environment, where a dict of environments is trained."""
    removed_columns: Sequence[str] = ()
    """The columns that the trainer removed from the row, so that no environment can have them."""
    processor: PartsProcessor | None = None
    """Writes its conversation; None: the engine's."""

    @property
    def pool(self) -> EnvPool | None:
        """The pool that lends its environment; None: `factory` makes it."""
        return self.source if is_pool(self.source) else None

    @property
    def factory(self) -> EnvFactory:
        """Makes its environment.

        Raises:
            TypeError: no factory is its source.
        """
        if not callable(self.source):
            raise TypeError(f"{type(self.source).__name__} makes no environment of its own")
        return self.source


def is_pool(env: Any) -> TypeGuard[EnvPool]:
    """Return whether it lends environments; the class of a pool does not."""
    return isinstance(env, EnvPool) and not inspect.isclass(env)
