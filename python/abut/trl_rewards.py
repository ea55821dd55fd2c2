"""Reward functions for `GRPOTrainer`.

Invariant: a rollout without a score of its environment has none from anybody, so that TRL leaves
its row out of the group's baseline.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abut.metrics import log_rollout_metrics

# What tells a row of the completions table from others; `rollout_id` finds it in the record.
_TABLE = ("num_turns", "stop_reason", "error", "rollout_id")


def env_reward(
    completions: Sequence[Any],
    *,
    env_reward: Sequence[float | None],
    rollout_stats: Sequence[Mapping[str, Any]] = (),
    log_metric: Callable[[str, float], None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **extras: Any,
) -> list[float | None]:
    """Reward function for `GRPOTrainer`: the environment's own reward; None where it has none.

    Logs the `rollout/…` metrics of the batch, and columns for TRL's table of completions.
    """
    if log_metric is not None:
        log_rollout_metrics(rollout_stats, log_metric)
    if log_extra is not None:
        for name in _TABLE:
            if name in extras:
                log_extra(name, list(extras[name]))
    return list(env_reward)


def scored_only(reward_func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function: None where the environment's own reward is None.

    That is where a rollout failed, sampled nothing, or got no score.

    TRL leaves a row out only where *every* reward function returns None.
    """

    def unscore(
        rewards: Sequence[float | None], env_reward: Sequence[float | None]
    ) -> list[float | None]:
        return [None if env is None else r for r, env in zip(rewards, env_reward, strict=True)]

    if inspect.iscoroutinefunction(reward_func):

        @functools.wraps(reward_func)
        async def wrapped_async(*args: Any, **kwargs: Any) -> list[float | None]:
            return unscore(await reward_func(*args, **kwargs), kwargs["env_reward"])

        wrapped_async.__abut_scored_only__ = True  # type: ignore[attr-defined]
        return wrapped_async

    @functools.wraps(reward_func)
    def wrapped(*args: Any, **kwargs: Any) -> list[float | None]:
        return unscore(reward_func(*args, **kwargs), kwargs["env_reward"])

    wrapped.__abut_scored_only__ = True  # type: ignore[attr-defined]
    return wrapped


env_reward.__abut_scored_only__ = True  # type: ignore[attr-defined]


def warn_of_unwrapped(reward_funcs: Sequence[Any], *, stacklevel: int) -> None:
    """Warn of each reward function that would score rollouts that failed."""
    for reward_func in reward_funcs:
        if not getattr(reward_func, "__abut_scored_only__", False):
            name = getattr(reward_func, "__name__", type(reward_func).__name__)
            warnings.warn(
                f"the reward function {name} also scores rollouts that failed, which pollutes "
                f"their group's baseline; wrap it: abut.trl.scored_only({name})",
                stacklevel=stacklevel + 1,
            )
