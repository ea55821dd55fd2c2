"""How many tokens a conversation may have, and its next turn."""

from dataclasses import dataclass
from typing import NamedTuple

from abut.rollout.config import RolloutConfig
from abut.rollout.rollout import StopReason


@dataclass(frozen=True)
class Budget:
    """How many tokens a conversation may have; None is no limit."""

    max_completion_tokens: int | None = None
    """Behind the prompt, sampled or not."""
    max_context_tokens: int | None = None
    """Prompt and completion."""
    max_turn_tokens: int | None = None
    """Sampled in one turn."""


class Allowance(NamedTuple):
    """How long the next turn may be."""

    tokens: int
    """Less than 1 if there is no next turn; `sys.maxsize` if nothing bounds it."""
    reason: StopReason
    """The limit that would end the conversation."""


def budget_of(config: RolloutConfig, holds: int | None) -> Budget:
    """The budget of one conversation.

    Args:
        config: its limits.
        holds: how many tokens the sampler can hold; None: it does not say.

    Raises:
        ValueError: nothing bounds it.
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
