"""Reward functions for `GRPOTrainer`: abut's own, and wrappers for those of a trainer.

Invariant: `env_reward` and every function in `scored_only` return None for a rollout that was not
measured (it failed, sampled nothing, or its adapter says so), so that TRL leaves the row out of the
group's baseline. For an environment without its own score, the other functions score the rollout.

At the first batch abut replaces each function of a trainer by a wrapper with the same name,
asynchronous if the function is; reward models are not wrapped. Every batch is logged once, whatever
functions there are. The wrapper also passes `completions` as messages, because TRL builds that
column from the tokens after the `rollout_func` has returned, as one message with the text of all
turns, and refuses a column of that name.
"""

import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from abut.tools.environment_factory import EnvironmentFactory
from abut.tools.tool_env import ToolEnv
from abut.trl.metrics import log_batch
from abut.trl.rows.columns import COMPLETIONS

RewardFunction: TypeAlias = Callable[..., Any]

OWN_REWARDS = (
    "a conversation with its own reward (AgentResult.rewards) is judged by that reward alone: "
    "the trainer's reward functions do not count for it"
)
"""Logged once, if there are reward functions besides `env_reward`."""


def env_reward(
    completions: Sequence[Any],
    *,
    env_reward: Sequence[float | None] | None = None,
    rollout_stats: Sequence[Mapping[str, Any]] = (),
    log_metric: Callable[[str, float], None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **extras: Any,
) -> list[float | None]:
    """Reward function for `GRPOTrainer`: the environment's own reward; None if there is none.

    Also logs the metrics of the batch, unless another function has done so.

    Raises:
        ValueError: the trainer's `rollout_func` is not abut's, so there are no rewards.
    """
    if env_reward is None:
        raise ValueError(
            "env_reward found no rewards of environments, because the trainer's rollout_func is "
            "not abut's\n"
            "hint: GRPOTrainer(…, rollout_func=make_rollout_func(YourEnv))"
        )
    log_batch(rollout_stats, extras, log_metric, log_extra)
    return list(env_reward)


def no_reward(
    completions: Sequence[Any], *, measured: Sequence[bool] | None = None, **columns: Any
) -> list[float | None]:
    """Reward function for `GRPOTrainer`: 0 for each rollout that did not fail.

    Use it with `credit=ReverseKL(…)` to train without rewards: all advantages then come from the
    teacher, also in environments without a score.

    Raises:
        ValueError: the trainer's `rollout_func` is not abut's.
    """
    if measured is None:
        raise ValueError(
            "no_reward found no column 'measured', which says which rollouts failed\n"
            "hint: GRPOTrainer(…, rollout_func=make_rollout_func(YourEnv, credit=ReverseKL(…)))"
        )
    return [0.0 if is_measured else None for is_measured in measured]


def scored_only(reward_func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function so that it returns None for each rollout that was not measured.

    A rollout is not measured if it failed, if it sampled nothing, or if its adapter says so: NeMo
    Gym's `mask_sample`, an Eval Protocol row without a result, `AgentResult(measured=False)`.
    `reward_func` scores all other rollouts, including those whose environment has no reward of its
    own and those that a budget cut. The column `measured`, from `make_rollout_func`, says which
    rollouts were measured.

    TRL leaves a row out only if *every* reward function returns None. The wrapper of an
    asynchronous function is asynchronous, also for a `functools.partial` of one or an object with
    an asynchronous `__call__`. `env_reward` does not need a wrapper and is returned unchanged.

        brevity = scored_only(lambda completions, **_: [-len(c) for c in completions])
        brevity(["ab", "c"], measured=[True, False])  # [-2, None]

    Raises:
        TypeError: `reward_func` is a reward model, to which TRL passes only tokens. The wrapper
            raises it if there is no column `measured`.
    """
    if isinstance(reward_func, str) or is_reward_model(reward_func):
        name = reward_func if isinstance(reward_func, str) else type(reward_func).__name__
        raise TypeError(
            f"scored_only({name}): TRL passes only tokens to a reward model, so it cannot tell "
            "which rollouts failed\n"
            f"{_MODEL_HINT}"
        )

    if getattr(reward_func, "__abut_scored_only__", False):
        return reward_func

    name = reward_name(reward_func)

    def with_measured(columns: dict[str, Any]) -> dict[str, Any]:
        if "measured" not in columns:
            raise TypeError(
                f"scored_only({name}) found no column 'measured', which says which rollouts may "
                "be scored\n"
                "hint: train with GRPOTrainer(rollout_func=make_rollout_func(…)); in your own "
                "test, pass measured=[True, …]"
            )
        return columns

    def unscore(rewards: Sequence[float | None], columns: Mapping[str, Any]) -> list[float | None]:
        return [
            reward if is_measured else None
            for reward, is_measured in zip(rewards, columns["measured"], strict=True)
        ]

    wrapper = _around(reward_func, with_measured, unscore)
    wrapper.__abut_scored_only__ = True
    return wrapper  # type: ignore[no-any-return]


def _around(
    reward_func: RewardFunction,
    columns_of: Callable[[dict[str, Any]], dict[str, Any]],
    rewards_of: Callable[[Any, Mapping[str, Any]], Any] = lambda rewards, columns: rewards,
) -> Any:
    """Return a wrapper of a reward function, with its name, asynchronous if the function is.

    Args:
        reward_func: the function to wrap.
        columns_of: makes the columns with which it is called.
        rewards_of: makes the result from its rewards and columns.
    """

    def wrapped(*args: Any, **columns: Any) -> Any:
        columns = columns_of(columns)
        return rewards_of(reward_func(*args, **columns), columns)

    async def wrapped_async(*args: Any, **columns: Any) -> Any:
        columns = columns_of(columns)
        return rewards_of(await reward_func(*args, **columns), columns)

    right = wrapped_async if is_async_reward(reward_func) else wrapped
    wrapper: Any = functools.update_wrapper(right, reward_func)
    wrapper.__name__ = reward_name(reward_func)  # TRL's name of the reward in logs and tables
    return wrapper


env_reward.__abut_scored_only__ = True  # type: ignore[attr-defined]
no_reward.__abut_scored_only__ = True  # type: ignore[attr-defined]

_MODEL_HINT = (
    "hint: call the model inside your own reward function, on messages or completions, and wrap "
    "that function with scored_only"
)


def warn_of_unwrapped(reward_funcs: Sequence[Any], *, stacklevel: int) -> None:
    """Warn about each reward function that would score rollouts that failed."""
    for reward_func in reward_funcs:
        if getattr(reward_func, "__abut_scored_only__", False):
            continue
        name = reward_name(reward_func)
        kind, cure = "function", f"; wrap it: abut.trl.scored_only({name})"
        if is_reward_model(reward_func):
            kind, cure = "model", f"\n{_MODEL_HINT}"
        warnings.warn(
            f"the reward {kind} {name} also scores rollouts that failed, which biases the "
            f"baseline of their group{cure}",
            stacklevel=stacklevel + 1,
        )


def _called(reward_func: Any) -> Any:
    """Return the function inside a partial of partials."""
    while isinstance(reward_func, functools.partial):
        reward_func = reward_func.func
    return reward_func


def is_async_reward(reward_func: Any) -> bool:
    """Return whether a reward function, a partial of one, or an object is asynchronous."""
    called = _called(reward_func)
    return any(map(inspect.iscoroutinefunction, (called, called.__call__)))


def reward_name(reward_func: Any) -> str:
    """Return the name of a reward function in logs, tables and errors."""
    called = _called(reward_func)
    return str(getattr(called, "__name__", type(called).__name__))


def is_reward_model(reward_func: Any) -> bool:
    """Return whether it is a reward model, to which TRL passes tokens."""
    torch = sys.modules.get("torch")  # a model exists only where torch was imported
    return torch is not None and isinstance(reward_func, torch.nn.Module)


_WRAPPED = "__abut_columns__"


def tool_names(kinds: Iterable[Any]) -> list[str]:
    """Return the names of the functions that the policy calls in these environments, each once."""
    with_tools = [kind for kind in kinds if isinstance(kind, ToolEnv | EnvironmentFactory)]
    schemas = [schema for kind in with_tools for schema in kind.tools]
    return list(dict.fromkeys(schema["function"]["name"] for schema in schemas))


def wrap_reward_functions(trainer: Any) -> None:
    """Wrap the reward functions of a trainer, each once.

    TRL has already read their names into `reward_func_names`. The trainer gets a new list, because
    TRL keeps the list that the user passed.
    """
    trainer.reward_funcs = [
        _wrapped(function) if _can_be_wrapped(function) else function
        for function in trainer.reward_funcs
    ]


def _can_be_wrapped(function: Any) -> bool:
    is_function = callable(function) and not is_reward_model(function)
    return is_function and not getattr(function, _WRAPPED, False)


def _is_of_envs(reward_func: Any) -> bool:
    return getattr(reward_func, "__wrapped__", reward_func) is env_reward


def are_of_envs(reward_funcs: Iterable[Any]) -> bool:
    """Return whether `env_reward` is the only function, so that no other one scores the rest."""
    return all(map(_is_of_envs, reward_funcs))


def env_weight(trainer: Any) -> float:
    """Return the weight of the environment's reward in a rollout's reward.

    The rewards of turns are parts of the environment's reward, so they have the same weight. It is
    the weight of `env_reward`, or 1 if that is not among the trainer's functions, because another
    function may use the environment's reward.
    """
    pairs = zip(trainer.reward_funcs, trainer.reward_weights.tolist(), strict=True)
    weights = [weight for function, weight in pairs if _is_of_envs(function)]
    return sum(weights) if weights else 1.0


def total_reward(rewards: Iterable[float | None], weights: Iterable[float]) -> float | None:
    """Return TRL's weighted sum of the functions' rewards; None if no function gave a reward."""
    pairs = zip(rewards, weights, strict=True)
    known = [weight * reward for reward, weight in pairs if reward is not None]
    return sum(known) if known else None


class ModelMetrics:
    """The metrics of a trainer that has only reward models, which cannot log.

    A callback adds the means since the last log to what TRL logs.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[dict[str, float]]] = {"train": [], "eval": []}
        self._followed: Any = None

    def add(self, trainer: Any, rows: Mapping[str, Any], mode: str) -> None:
        """Add a batch, on all ranks, unless a reward function logs it."""
        if any(getattr(function, _WRAPPED, False) for function in trainer.reward_funcs):
            return
        self._follow(trainer)
        metrics: dict[str, float] = {}
        log_batch(rows["rollout_stats"], rows, metrics.__setitem__, None)
        gathered = [metrics]
        if trainer.accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            gathered = gather_object([metrics])
        self._waiting[mode].append(_means(gathered))

    def _follow(self, trainer: Any) -> None:
        if self._followed is trainer or not hasattr(trainer, "callback_handler"):
            return
        from transformers import TrainerCallback

        waiting = self._waiting

        class AddMetrics(TrainerCallback):  # type: ignore[misc]
            def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
                mode = "eval" if any(name.startswith("eval_") for name in logs) else "train"
                prefix = "eval_" if mode == "eval" else ""
                means = {f"{prefix}{name}": mean for name, mean in _means(waiting[mode]).items()}
                waiting[mode].clear()
                logs.update(means)
                if state.log_history:
                    state.log_history[-1].update(means)

        # Before the callbacks that send `logs` to trackers, and that print them.
        trainer.callback_handler.callbacks.insert(0, AddMetrics())
        self._followed = trainer


def _means(batches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the batches that have a number for it."""
    names = dict.fromkeys(name for batch in batches for name in batch)
    means = {}
    for name in names:
        values = [batch[name] for batch in batches if not math.isnan(batch.get(name, math.nan))]
        means[name] = sum(values) / len(values) if values else math.nan
    return means


def _wrapped(function: RewardFunction) -> RewardFunction:
    wrapper = _around(function, _handed_over)
    setattr(wrapper, _WRAPPED, True)
    return wrapper  # type: ignore[no-any-return]


def _handed_over(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a batch as a function gets them; log the batch if it was not logged."""
    handed = dict(columns)
    told = handed.pop(COMPLETIONS, None)
    if told is not None and "completions" in handed:
        handed["completions"] = [
            theirs if ours is None else ours
            for ours, theirs in zip(told, handed["completions"], strict=True)
        ]
    if (stats := handed.get("rollout_stats")) is not None:
        log_batch(stats, handed, handed.get("log_metric"), handed.get("log_extra"))
    return handed
