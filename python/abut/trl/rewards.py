"""Reward functions for `GRPOTrainer`.

Invariant: a rollout without a score of its environment has none from anybody, so that TRL leaves
its row out of the group's baseline.
"""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abut.trl.metrics import log_extra_metrics, log_rollout_metrics

# Two at most: on 80 columns TRL's table gives each of its columns ten characters.
_TABLE = ("num_turns", "stop_reason")


def env_reward(
    completions: Sequence[Any],
    *,
    env_reward: Sequence[float | None] | None = None,
    rollout_stats: Sequence[Mapping[str, Any]] = (),
    log_metric: Callable[[str, float], None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **extras: Any,
) -> list[float | None]:
    """Reward function for `GRPOTrainer`: the environment's own reward; None where it has none.

    Logs the `rollout/…` metrics of the batch, those of agents (extras whose name has a slash), and
    columns for TRL's table of completions.

    Raises:
        ValueError: the trainer has no `rollout_func` of abut's, so nobody measured a reward.
    """
    if env_reward is None:
        raise ValueError(
            "env_reward got no rewards of environments: the trainer has no rollout_func of abut's\n"
            "hint: GRPOTrainer(…, rollout_func=make_rollout_func(YourEnv))"
        )
    if log_metric is not None:
        log_rollout_metrics(rollout_stats, log_metric)
        log_extra_metrics(extras, log_metric)
    if log_extra is not None:
        for name in _TABLE:
            if name in extras:
                log_extra(name, list(extras[name]))
    return list(env_reward)


def scored_only(reward_func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function: None where the environment's own reward is None.

    That is where a rollout failed, sampled nothing, or got no score.

    TRL leaves a row out only where *every* reward function returns None. What is asynchronous stays
    so, as TRL sees it: a function, a `functools.partial`, or an object with such a `__call__`.

    Raises:
        TypeError: `reward_func` is a reward model, which TRL gives tokens and no columns.
    """
    if isinstance(reward_func, str) or is_reward_model(reward_func):
        name = reward_func if isinstance(reward_func, str) else type(reward_func).__name__
        raise TypeError(
            f"scored_only({name}): TRL gives a reward model tokens, and no column that says which "
            f"rollouts failed\n{_MODEL_HINT}"
        )

    def unscore(
        rewards: Sequence[float | None], env_reward: Sequence[float | None]
    ) -> list[float | None]:
        return [None if env is None else r for r, env in zip(rewards, env_reward, strict=True)]

    async def wrapped_async(*args: Any, **kwargs: Any) -> list[float | None]:
        return unscore(await reward_func(*args, **kwargs), kwargs["env_reward"])

    def wrapped(*args: Any, **kwargs: Any) -> list[float | None]:
        return unscore(reward_func(*args, **kwargs), kwargs["env_reward"])

    right = wrapped_async if is_async_reward(reward_func) else wrapped
    wrapper: Any = functools.update_wrapper(right, reward_func)
    wrapper.__name__ = reward_name(reward_func)  # TRL's name of the reward in logs and tables
    wrapper.__abut_scored_only__ = True
    return wrapper  # type: ignore[no-any-return]


env_reward.__abut_scored_only__ = True  # type: ignore[attr-defined]

_MODEL_HINT = (
    "hint: call the model in a reward function of your own, on messages or completions, and pass "
    "scored_only of that function"
)


def warn_of_unwrapped(reward_funcs: Sequence[Any], *, stacklevel: int) -> None:
    """Warn of each reward function that would score rollouts that failed."""
    for reward_func in reward_funcs:
        if getattr(reward_func, "__abut_scored_only__", False):
            continue
        name = reward_name(reward_func)
        kind, cure = "function", f"; wrap it: abut.trl.scored_only({name})"
        if is_reward_model(reward_func):
            kind, cure = "model", f"\n{_MODEL_HINT}"
        warnings.warn(
            f"the reward {kind} {name} also scores rollouts that failed, which pollutes their "
            f"group's baseline{cure}",
            stacklevel=stacklevel + 1,
        )


def _called(reward_func: Any) -> Any:
    """What a partial calls in the end."""
    while isinstance(reward_func, functools.partial):
        reward_func = reward_func.func
    return reward_func


def is_async_reward(reward_func: Any) -> bool:
    """Whether it is asynchronous as TRL sees it: a function, a partial of one, or an object."""
    called = _called(reward_func)
    return any(map(inspect.iscoroutinefunction, (called, called.__call__)))


def reward_name(reward_func: Any) -> str:
    """Its name in logs, tables and errors."""
    called = _called(reward_func)
    return str(getattr(called, "__name__", type(called).__name__))


def is_reward_model(reward_func: Any) -> bool:
    """Whether it is a model, which TRL gives tokens."""
    torch = sys.modules.get("torch")  # whoever has a module has imported it
    return torch is not None and isinstance(reward_func, torch.nn.Module)
