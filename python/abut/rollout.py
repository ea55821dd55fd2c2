"""What a rollout is: its settings, what it starts from, and what came of it.

A rollout is a trajectory with reward, timing and errors. A bad rollout is data, not a crash: it is
recorded with its reason and carries no weight in training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from abut._native import Columns
from abut.env import EnvFactory, EnvPool
from abut.messages import Message
from abut.processor import PartsProcessor


def _help(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class RolloutConfig:
    """Limits and policies of rollouts. None means: taken from the trainer or the engine."""

    max_turns: int = _help(8, "Turns of one rollout; the last action is still answered.")
    max_turn_tokens: int | None = _help(None, "Sampled tokens of one turn.")
    max_completion_tokens: int | None = _help(
        None,
        "Tokens of the whole completion, sampled or not. None: the trainer's "
        "max_completion_length.",
    )
    max_context_tokens: int | None = _help(
        None, "Tokens of prompt and completion. None: what the engine can hold."
    )
    reset_timeout_s: float = _help(120, "Seconds for making and resetting an environment.")
    step_timeout_s: float = _help(
        60, "Seconds for one step of an environment, from when it has its slot."
    )
    turn_timeout_s: float = _help(
        300, "Seconds for sampling one turn, waiting included; not for the trainer's own model."
    )
    rollout_timeout_s: float = _help(
        900, "Seconds for one attempt at a rollout, less those of the trainer's own model."
    )
    retries: int = _help(1, "Whole episodes that are run again, each on a fresh environment.")
    on_failure: Literal["unscored", "zero", "raise"] = _help(
        "unscored",
        "A rollout that failed after its retries: a row without weight (reward None), a row "
        "with reward 0.0, or an error that stops training.",
    )
    max_failed_frac: float = _help(0.5, "Share of failed rollouts above which the batch raises.")
    reward: Literal["last", "sum"] = _help(
        "last", "The env's reward after its last step, or the sum over its steps."
    )
    max_rollouts: int | None = _help(None, "Rollouts in flight at once. None: all of the batch.")
    max_env_steps: int = _help(64, "Environment calls at once; fewest turns played come first.")
    max_requests: int = _help(256, "Requests to the engine at once; fewest turns come first.")
    seed: int = _help(0, "Seed of sampling and of `episode_seed`.")

    def __post_init__(self) -> None:
        """Refuse values that no batch could run with.

        Raises:
            ValueError: names the field, its value and what it may be.
        """
        for name in ("max_turns", "max_env_steps", "max_requests"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in (
            "max_turn_tokens",
            "max_completion_tokens",
            "max_context_tokens",
            "max_rollouts",
        ):
            value = getattr(self, name)
            self._require(name, value is None or value >= 1, "at least 1, or None")
        for name in ("reset", "step", "turn", "rollout"):
            name = f"{name}_timeout_s"
            self._require(name, getattr(self, name) > 0, "more than 0 seconds")
        self._require("retries", self.retries >= 0, "0 or more")
        self._require("max_failed_frac", 0 <= self.max_failed_frac <= 1, "between 0 and 1")
        self._require(
            "on_failure",
            self.on_failure in ("unscored", "zero", "raise"),
            "'unscored', 'zero' or 'raise'",
        )
        self._require("reward", self.reward in ("last", "sum"), "'last' or 'sum'")

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"RolloutConfig.{name}={getattr(self, name)!r}: must be {allowed}")


class StopReason(StrEnum):
    """Why a rollout ended."""

    ENV_DONE = "env_done"
    """The environment said that it is over (`alive` is false)."""
    MAX_TURNS = "max_turns"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    """The next turn would not fit into the completion."""
    MAX_CONTEXT_TOKENS = "max_context_tokens"
    """The next turn would not fit into what the engine can hold."""
    EMPTY_SAMPLE = "empty_sample"
    """The sampler returned no token."""
    ERROR = "error"
    """It failed, after its retries."""


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
    processor: PartsProcessor | None = None
    """Writes its conversation; None: the engine's."""


@dataclass
class TurnRecord:
    """One turn: where its sample stands, how it ended, and what it took."""

    start: int
    """First token of the sample in the trajectory."""
    end: int
    """Behind its last token."""
    finish_reason: str
    generate_s: float
    env_s: float = 0.0
    reward: float | None = None
    """The env's reward after this turn's step; None: no score."""
    stop_token: int | None = None
    """The token that ended the turn: its first stop token, or the token that its stop string begins
    in. The env hears what stands before it. None: cut by length, or its stop token is not known."""
    stop_string: str | None = None
    stop_inside: bool = False
    """Whether the stop string begins inside `stop_token`, not at its first byte."""


@dataclass
class Rollout:
    """A trajectory with reward, timing and errors."""

    rollout_id: str
    index: int
    columns: Columns | None = None
    """None where nothing was sampled."""
    provenance: NDArray[np.uint8] | Sequence[int] = field(default=(), compare=False)
    """One code per token of `columns`, prompt and completion; see `abut.PROVENANCE`."""
    prompt_ids: NDArray[np.int64] | Sequence[int] | None = field(default=None, compare=False)
    """The first request, where there was one."""
    reward: float | None = None
    turns: list[TurnRecord] = field(default_factory=list)
    seams: list[tuple[str, bool]] = field(default_factory=list)
    """For each seam its kind and whether it is exact."""
    messages: list[Message] = field(default_factory=list)
    control_spellings: dict[str, int] = field(default_factory=dict)
    """How often users, tools and the environment have spelled each control token; none was made."""
    stop_reason: StopReason = StopReason.ERROR
    error: str | None = None
    attempts: int = 1
    attempt_errors: list[str] = field(default_factory=list)
    """The errors of the attempts that failed, also where a later one succeeded."""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it ended by an error."""
        return self.stop_reason is StopReason.ERROR

    @property
    def step_rewards(self) -> list[float | None]:
        """The env's reward after each turn."""
        return [turn.reward for turn in self.turns]

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(turn.end - turn.start for turn in self.turns)
