"""Reward functions for `GRPOTrainer`.

Invariant: `env_reward` and every function in `scored_only` return None for a rollout that was not
measured (it failed, sampled nothing, or its adapter says so), so that TRL leaves the row out of the
group's baseline. An environment without a score of its own leaves the score to the other functions.
"""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from abut.trl.metrics import log_batch

RewardFunction: TypeAlias = Callable[..., Any]


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

    Logs the metrics of the batch, as `log_batch` does, unless another function has done so.

    Raises:
        ValueError: the trainer has no `rollout_func` of abut's, so nobody measured a reward.
    """
    if env_reward is None:
        raise ValueError(
            "env_reward got no rewards of environments: the trainer has no rollout_func of abut's\n"
            "hint: GRPOTrainer(…, rollout_func=make_rollout_func(YourEnv))"
        )
    log_batch(rollout_stats, extras, log_metric, log_extra)
    return list(env_reward)


def scored_only(reward_func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function: None for each rollout that was not measured.

    A rollout is not measured if it failed, if it sampled nothing, or if its adapter says so: NeMo
    Gym's `mask_sample`, an Eval Protocol row without a result, `AgentResult(measured=False)`. All
    other rollouts are scored by `reward_func`, also those whose environment has no reward of its
    own, and those that a budget cut. The column `measured` of `make_rollout_func` says which.

    TRL leaves a row out only where *every* reward function returns None. What is asynchronous stays
    so, as TRL sees it: a function, a `functools.partial`, or an object with such a `__call__`.

        brevity = scored_only(lambda completions, **_: [-len(c) for c in completions])
        brevity(["ab", "c"], measured=[True, False])  # [-2, None]

    Raises:
        TypeError: `reward_func` is a reward model, which TRL gives tokens and no columns. Or, when
            it is called, there is no column `measured`.
    """
    if isinstance(reward_func, str) or is_reward_model(reward_func):
        name = reward_func if isinstance(reward_func, str) else type(reward_func).__name__
        raise TypeError(
            f"scored_only({name}): TRL gives a reward model tokens, and no column that says which "
            f"rollouts failed\n{_MODEL_HINT}"
        )

    name = reward_name(reward_func)

    def measured_in(columns: Mapping[str, Any]) -> Sequence[bool]:
        if "measured" not in columns:
            raise TypeError(
                f"scored_only({name}) got no column 'measured', which says what may be scored\n"
                "hint: it needs GRPOTrainer(rollout_func=make_rollout_func(…)); in a test of your "
                "own, pass measured=[True, …]"
            )
        return columns["measured"]  # type: ignore[no-any-return]

    def unscore(rewards: Sequence[float | None], measured: Sequence[bool]) -> list[float | None]:
        return [
            reward if is_measured else None
            for reward, is_measured in zip(rewards, measured, strict=True)
        ]

    async def wrapped_async(*args: Any, **kwargs: Any) -> list[float | None]:
        measured = measured_in(kwargs)
        return unscore(await reward_func(*args, **kwargs), measured)

    def wrapped(*args: Any, **kwargs: Any) -> list[float | None]:
        measured = measured_in(kwargs)
        return unscore(reward_func(*args, **kwargs), measured)

    wrapper = named_like(reward_func, wrapped, wrapped_async)
    wrapper.__abut_scored_only__ = True  # type: ignore[attr-defined]
    return wrapper


def named_like(
    reward_func: RewardFunction, wrapped: RewardFunction, wrapped_async: RewardFunction
) -> RewardFunction:
    """Return the wrapper that TRL takes for `reward_func`: as asynchronous, and of its name."""
    right = wrapped_async if is_async_reward(reward_func) else wrapped
    wrapper: Any = functools.update_wrapper(right, reward_func)
    wrapper.__name__ = reward_name(reward_func)  # TRL's name of the reward in logs and tables
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
