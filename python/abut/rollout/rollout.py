"""What came of a rollout: a trajectory with reward, timing and errors.

A bad rollout is data, not a crash: it is recorded with its reason, and has no weight in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from abut._native import Columns
from abut.messages import Message


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
    model_version: str | None = None
    """Of the weights that sampled it, where the sampler knows."""


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
    branches: Sequence[Columns] = field(default=(), compare=False)
    """Further rows of a conversation that an agent continued in several ways."""
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
    attempt_tracebacks: list[str] = field(default_factory=list)
    """Where each of them came from, with the environment's file and line."""
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
