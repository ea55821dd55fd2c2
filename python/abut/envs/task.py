"""What a rollout starts from, and what makes or lends its environment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

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


@dataclass(frozen=True)
class RolloutTask:
    """What one rollout starts from."""

    index: int
    """Position in the batch: the row that it becomes."""
    rollout_id: str
    make_env: EnvFactory | EnvPool
    messages: Sequence[Message]
    """The history before the environment's first reply; may be empty."""
    seed: str
    """What `reset` gets."""
    episode_seed: int
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the dataset's row."""
    group: int = 0
    """The number of its group, counted over ranks and batches: the rollouts of one prompt."""
    place: int = 0
    """Which one of its group it is, over all ranks."""
    sample_key: str | None = None
    """What the seeds of its samples are made of; None: its `rollout_id`."""
    whole_group: bool = True
    """Whether all rollouts of its group are played here; a rank's slice may cut it."""
    run_id: str = ""
    """Of the training run, the same for all of its rollouts."""
    step: int | None = None
    """Of the trainer, where there is one."""
    mode: Literal["train", "eval"] = "train"
    removed_columns: Sequence[str] = ()
    """What the trainer took out of that row, so that no environment can have it."""
    processor: PartsProcessor | None = None
    """Writes its conversation; None: the engine's."""
