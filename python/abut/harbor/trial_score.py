"""The score of a trial, from its result.

Invariant: only a verifier's number is a score. A failed trial has no score, unless the only failure
is that the agent ran out of time or reached a limit of the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from abut.agents.dataset_agent import RewardChoice, choose_reward

_AGENT_TIMEOUT = "AgentTimeoutError"
_PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")


@dataclass(frozen=True)
class TrialScore:
    """The score of one trial, or the errors that explain why it has none.

    Attributes:
        reward: the reward that the user chose from `rewards`; None if the verifier returned none.
        rewards: all rewards of the verifier, by name.
        errors: the failures of the trial, such as `RuntimeError: no such file`.
        is_cut: True if the agent ran out of time and nothing else failed.
        seconds: the duration of each phase that began and ended, by name.
    """

    reward: float | None
    rewards: Mapping[str, float]
    errors: tuple[str, ...]
    is_cut: bool
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, result: Any, reward: RewardChoice, name: str) -> "TrialScore":
        """Return the score of a `TrialResult`.

        Args:
            result: the trial's result.
            reward: the user's choice.
            name: the agent's name, for the error.

        Raises:
            UnplayableRow: there are several rewards and no choice, or none of the chosen name.
        """
        verified = result.verifier_result
        rewards = dict((verified.rewards if verified is not None else None) or {})
        found = result.recorded_exceptions()
        kinds = {one.exception_type for one in found}
        errors = [f"{one.exception_type}: {one.exception_message}" for one in found]
        if not rewards and not errors:
            errors = ["the verifier returned no reward"]
        return cls(
            reward=choose_reward(rewards, reward, name) if rewards else None,
            rewards=rewards,
            errors=tuple(errors),
            is_cut=bool(rewards) and kinds == {_AGENT_TIMEOUT},
            seconds=_seconds(result),
        )

    @property
    def is_score(self) -> bool:
        """True if the reward counts without regard to limits of the gateway."""
        return self.is_cut or not self.errors


def _seconds(result: Any) -> dict[str, float]:
    """Return the seconds of each phase, summed over the steps of the task."""
    seconds: dict[str, float] = {}
    for part in (result, *(result.step_results or ())):
        for phase in _PHASES:
            timing = getattr(part, phase, None)
            if timing is not None and timing.started_at and timing.finished_at:
                took = (timing.finished_at - timing.started_at).total_seconds()
                seconds[phase] = seconds.get(phase, 0.0) + took
    return seconds
