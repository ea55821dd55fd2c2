"""Token budgets: how many tokens a conversation and its next turn may have."""

from dataclasses import dataclass
from typing import NamedTuple

from abut.rollout.config import RolloutConfig
from abut.rollout.rollout import StopReason


@dataclass(frozen=True)
class Budget:
    """How many tokens a conversation may have; None means no limit."""

    max_completion_tokens: int | None = None
    """The most tokens after the prompt, sampled or not."""
    max_context_tokens: int | None = None
    """The most tokens of prompt and completion together."""
    max_turn_tokens: int | None = None
    """The most sampled tokens of one turn."""


class Allowance(NamedTuple):
    """How long the next turn may be."""

    tokens: int
    """Less than 1 if there is no next turn; `sys.maxsize` without a limit."""
    reason: StopReason
    """The limit that would end the conversation."""


def budget_of(config: RolloutConfig, holds: int | None) -> Budget:
    """Return the budget of one conversation.

    Args:
        config: its limits.
        holds: how many tokens the sampler can hold; None if it does not say.

    Raises:
        ValueError: there is no limit.
    """
    context = config.max_context_tokens
    if holds is not None and (context is None or holds < context):
        context = holds
    if config.max_completion_tokens is None and context is None:
        raise ValueError(
            "a rollout has no token limit, neither from RolloutConfig nor from the sampler\n"
            "hint: set RolloutConfig(max_completion_tokens=2048)"
        )
    return Budget(config.max_completion_tokens, context, config.max_turn_tokens)
