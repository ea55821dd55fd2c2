"""The settings of rollouts: limits and policies."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

BranchChoice: TypeAlias = Literal["all", "longest", "last", "random"]

_DEFAULT_ENV_TURNS = 8


def _help(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class RolloutConfig:
    """Limits and policies of rollouts. None means: taken from the trainer or the engine."""

    max_turns: int | None = _help(
        None,
        "Turns of one rollout; the last action is still answered. Of an agent: calls of one "
        "conversation. None: 8 for environments, no limit for agents.",
    )
    max_calls: int | None = _help(
        None, "Answered calls of an agent's rollout, over all of its conversations."
    )
    max_rollout_tokens: int | None = _help(
        None, "Sampled tokens of an agent's rollout, over all of its conversations."
    )
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
    branch: BranchChoice | None = _help(  # noqa: RUF009
        None,
        "Which conversations of an agent are trained: all of them, or one for each rollout: that "
        "with the most sampled tokens, that of the last answer, or one drawn with the seed. None: "
        "all where the trainer takes them, else the longest.",
    )
    auxiliary: Literal["train", "leave_out"] = _help(
        "train",
        "Whether auxiliary conversations of an agent are trained: those without a name, tools or "
        "history, such as a title or a summary, beside others with tools.",
    )
    streams: tuple[str, ...] = _help(
        (),
        "Names of the arrays of `Sample.streams` that rollouts and records keep; a sample without "
        "one is an error. All others are dropped.",
    )
    log_every_s: float | None = _help(
        None,
        "Seconds between two lines in the log while rollouts play: how many have ended, their "
        "turns and failures, and which one has played the longest. None: no lines.",
    )
    seed: int = _help(0, "Seed of sampling and of `episode_seed`.")

    def __post_init__(self) -> None:
        """Refuse values that no batch could run with.

        Raises:
            ValueError: names the field, its value and what it may be.
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
        """Turns of one rollout with an environment."""
        return _DEFAULT_ENV_TURNS if self.max_turns is None else self.max_turns

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"RolloutConfig.{name}={getattr(self, name)!r}: must be {allowed}")
