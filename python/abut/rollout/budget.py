"""How many tokens a conversation may have."""

from abut.rollout.config import RolloutConfig
from abut.rollout.conversation import Budget


def budget_of(config: RolloutConfig, holds: int | None) -> Budget:
    """The budget of one conversation.

    Args:
        config: its limits.
        holds: so many tokens the sampler can hold; None: it does not say.

    Raises:
        ValueError: nothing bounds it.
    """
    context = config.max_context_tokens
    if holds is not None and (context is None or holds < context):
        context = holds
    if config.max_completion_tokens is None and context is None:
        raise ValueError(
            "nothing bounds a rollout: neither RolloutConfig nor the sampler has a limit\n"
            "hint: RolloutConfig(max_completion_tokens=2048)"
        )
    return Budget(config.max_completion_tokens, context, config.max_turn_tokens)
