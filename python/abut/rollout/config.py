"""The settings of rollouts: limits and policies."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

BranchChoice: TypeAlias = Literal["all", "longest", "last", "random"]

_DEFAULT_ENV_TURNS = 8


def _help(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class RolloutConfig:
    """Limits and policies of rollouts.

    Each field has a help text, also for command lines made with `TrlParser`. None means that the
    value comes from the trainer or the engine.
    """

    max_turns: int | None = _help(
        None,
        "Most turns of one rollout; the environment still answers the last action. For an agent: "
        "most calls of one conversation. None: 8 for environments, no limit for agents.",
    )
    max_calls: int | None = _help(
        None,
        "Most answered calls of an agent's rollout, over all of its conversations. None: no limit.",
    )
    max_rollout_tokens: int | None = _help(
        None,
        "Most sampled tokens of an agent's rollout, over all of its conversations. None: no limit.",
    )
    max_turn_tokens: int | None = _help(
        None,
        "Most sampled tokens of one turn. None: no limit but those of the completion and the "
        "context.",
    )
    max_completion_tokens: int | None = _help(
        None,
        "Most tokens of the whole completion, sampled and env tokens together. None: the "
        "trainer's max_completion_length.",
    )
    max_context_tokens: int | None = _help(
        None, "Most tokens of prompt and completion together. None: the limit of the engine."
    )
    reset_timeout_s: float = _help(
        120, "Seconds that making and resetting an environment may take."
    )
    step_timeout_s: float = _help(
        60,
        "Seconds that one step of an environment may take, without the wait for a slot "
        "(max_env_steps).",
    )
    turn_timeout_s: float = _help(
        300,
        "Seconds that sampling one turn may take, including the wait for the engine. Does "
        "not apply when the trainer's own model samples.",
    )
    rollout_timeout_s: float = _help(
        900,
        "Seconds that one attempt at a rollout may take, without the time in which the "
        "trainer's own model samples.",
    )
    retries: int = _help(
        1, "How often a failed rollout is played again, each time in a fresh environment."
    )
    on_failure: Literal["unscored", "zero", "raise"] = _help(
        "unscored",
        'The treatment of a rollout that failed after its retries: "unscored" makes a row '
        'without weight (reward None), "zero" a row with reward 0.0, "raise" stops training with '
        "an error.",
    )
    max_failed_frac: float = _help(
        0.5, "Share of failed rollouts in a batch above which training stops with an error."
    )
    reward: Literal["last", "sum"] = _help(
        "last", "The reward of the environment after its last step, or the sum over its steps."
    )
    max_rollouts: int | None = _help(
        None, "Most rollouts in flight at once. None: the whole batch."
    )
    max_env_steps: int = _help(
        64, "Most environment calls at once; rollouts with the fewest turns go first."
    )
    max_requests: int = _help(
        256, "Most requests to the engine at once; rollouts with the fewest turns go first."
    )
    branch: BranchChoice | None = _help(  # noqa: RUF009
        None,
        "Which conversations of an agent are trained: all of them, or one for each rollout: the "
        "longest (most sampled tokens), the last (with the last answer), or a random one drawn "
        "with the seed. None: all if the trainer takes them, else the longest.",
    )
    auxiliary: Literal["train", "leave_out"] = _help(
        "train",
        "The treatment of auxiliary conversations of an agent: train them or leave them out. A "
        "conversation is auxiliary if it has no name, no tools and no history while others of "
        "the rollout have tools, such as one that writes a title or a summary.",
    )
    streams: tuple[str, ...] = _help(
        (),
        "Names of the arrays of `Sample.streams` that rollouts and records keep. A sample "
        "without one of them is an error; other arrays are dropped.",
    )
    log_every_s: float | None = _help(
        None,
        "Seconds between two progress lines in the log: how many rollouts have ended, their "
        "turns and failures, and which one has played the longest. None: no lines.",
    )
    seed: int = _help(0, "Seed for sampling and for `episode_seed`.")

    def __post_init__(self) -> None:
        """Refuse values that no batch could run with.

        Raises:
            ValueError: a field has an invalid value; names the field, its value and the valid
                values.
        """
        self._require("streams", not isinstance(self.streams, str), "a tuple of names")
        for name in ("max_env_steps", "max_requests"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in (
            "max_turns",
            "max_calls",
            "max_rollout_tokens",
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
        every = self.log_every_s
        self._require("log_every_s", every is None or every > 0, "more than 0 seconds, or None")
        self._require("retries", self.retries >= 0, "0 or more")
        self._require("max_failed_frac", 0 <= self.max_failed_frac <= 1, "between 0 and 1")
        self._require(
            "on_failure",
            self.on_failure in ("unscored", "zero", "raise"),
            "'unscored', 'zero' or 'raise'",
        )
        self._require("reward", self.reward in ("last", "sum"), "'last' or 'sum'")
        self._require(
            "auxiliary", self.auxiliary in ("train", "leave_out"), "'train' or 'leave_out'"
        )
        self._require(
            "branch",
            self.branch is None or self.branch in get_args(BranchChoice),
            "'all', 'longest', 'last', 'random' or None",
        )

    @property
    def max_env_turns(self) -> int:
        """The most turns of one rollout with an environment."""
        return _DEFAULT_ENV_TURNS if self.max_turns is None else self.max_turns

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"RolloutConfig.{name}={getattr(self, name)!r}: must be {allowed}")
