"""The score of a trial, from its result.

Invariant: only a verifier's number is a score. A trial in which something failed has none, unless
only the agent's time or room was over when the verifier looked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from abut.agents.dataset_agent import RewardChoice, choose_reward

_AGENT_TIMEOUT = "AgentTimeoutError"
_PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")


@dataclass(frozen=True)
class TrialScore:
    """The score of one trial, and why there is none.

    Attributes:
        reward: by the user's choice, of what the verifier measured; None: it measured nothing.
        rewards: what the verifier measured, by name.
        errors: what failed, such as `RuntimeError: no such file`.
        is_cut: whether the agent's time was over, and nothing else failed.
        seconds: of each phase; only phases that began and ended.
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
            result: of the trial.
            reward: the user's choice.
            name: what errors call the agent.

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
        """True if the reward counts, even if the gateway has refused nothing."""
        return self.is_cut or not self.errors


def _seconds(result: Any) -> dict[str, float]:
    """Return the seconds of each phase; of a task with several steps, their sums."""
    seconds: dict[str, float] = {}
    for part in (result, *(result.step_results or ())):
        for phase in _PHASES:
            timing = getattr(part, phase, None)
            if timing is not None and timing.started_at and timing.finished_at:
                took = (timing.finished_at - timing.started_at).total_seconds()
                seconds[phase] = seconds.get(phase, 0.0) + took
    return seconds
