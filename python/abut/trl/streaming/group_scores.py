"""The scores of a group: the rewards, and the advantages that follow from them.

Invariant: an advantage is finite and equals that of TRL's own worker: over the scored rollouts of a
group, (reward - mean) / (std + 1e-8) with the population's standard deviation.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from abut.concurrency.threads import THREADS
from abut.errors import RolloutError, text_of
from abut.trl.rewards import is_async_reward, is_reward_model, reward_name

RewardFunction = Callable[..., Any]
_LARGEST = 1e100


class GroupScores(NamedTuple):
    """The scores of one group, in the order of its rollouts."""

    by_function: Mapping[str, Sequence[float | None]]
    """None: the function gave none."""
    rewards: Sequence[float | None]
    """Their sums; None: nothing scored the rollout."""
    advantages: Sequence[float]
    """0.0 where there is no reward."""
    mean: float
    """NaN where nothing is scored."""
    std: float


def reward_functions(reward_funcs: Any) -> list[RewardFunction]:
    """Return the reward functions of a worker as a list.

    Raises:
        TypeError: one is not a function, or is a reward model.
        ValueError: the list is empty.
    """
    functions = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    for function in functions:
        if is_reward_model(function) or not callable(function):
            raise TypeError(
                f"reward_funcs has {function!r}, which is no function\n"
                "hint: call a reward model in a function of your own, on messages or completions"
            )
    if not functions:
        raise ValueError("reward_funcs is empty: nothing could be learned\nhint: env_reward")
    return functions


async def scores_of(
    functions: Sequence[RewardFunction],
    columns: Mapping[str, Any],
    can_be_scored: Sequence[bool],
    on_loop: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
) -> GroupScores:
    """Ask the functions for the rewards of a group.

    Args:
        functions: each is called once, with the columns; a synchronous one on a thread.
        columns: the arguments of each call, one value for each rollout.
        can_be_scored: whether each rollout can; the others get no reward, whatever a function says.
        on_loop: runs asynchronous functions, on the loop of environments.

    Raises:
        RolloutError: a function raised, or did not return one reward for each rollout.
    """
    by_function: dict[str, list[float | None]] = {}
    for function in functions:
        name = reward_name(function)
        try:
            returned = await _called(function, columns, on_loop)
            values = [None if value is None else float(value) for value in returned]
        except Exception as error:
            raise RolloutError(f"the reward function {name} raised {text_of(error)}") from error
        if len(values) != len(can_be_scored):
            raise RolloutError(
                f"the reward function {name} returned {len(values)} rewards for a group of "
                f"{len(can_be_scored)} rollouts"
            )
        by_function[name] = [
            value if value is not None and can and math.isfinite(value) else None
            for value, can in zip(values, can_be_scored, strict=True)
        ]
    rewards = []
    for given in zip(*by_function.values(), strict=True):
        scored = [value for value in given if value is not None]
        rewards.append(sum(scored) if scored else None)
    advantages, mean, std = advantages_of(rewards)
    return GroupScores(by_function, rewards, advantages, mean, std)


def advantages_of(rewards: Sequence[float | None]) -> tuple[list[float], float, float]:
    """Return the advantage of each rollout, and the mean and standard deviation of the rewards."""
    scored = np.array([reward for reward in rewards if reward is not None], np.float64)
    if not len(scored):
        return [0.0] * len(rewards), math.nan, math.nan
    # The square of a reward above 1e154 would overflow, so rewards are scaled down to at most
    # `_LARGEST`, which changes no ratio.
    scale = max(1.0, float(np.abs(scored).max()) / _LARGEST)
    mean, std = float((scored / scale).mean()), float((scored / scale).std())
    advantages = [
        0.0 if reward is None else (reward / scale - mean) / (std + 1e-8) for reward in rewards
    ]
    return advantages, mean * scale, std * scale


async def _called(
    function: RewardFunction,
    columns: Mapping[str, Any],
    on_loop: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
) -> Any:
    if is_async_reward(function):
        return await on_loop(lambda: function(**columns))
    return await THREADS.ask(lambda: function(**columns))
