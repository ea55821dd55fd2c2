"""The scores of a group: its rewards, and the advantages computed from them.

Invariant: an advantage is finite and equals that of TRL's own worker: over the scored rollouts of a
group, (reward - mean) / (std + 1e-8) with the population's standard deviation. Conversations with
their own reward are compared in the same way, within each name.
"""

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from abut.concurrency.threads import THREADS
from abut.errors import RolloutError, text_of
from abut.rollout.rollout import Branch
from abut.trl.returns import PathReturns, compared, path_of
from abut.trl.rewards import is_async_reward, is_reward_model, reward_name

RewardFunction = Callable[..., Any]
_LARGEST = 1e100
_LEAST = 1e-8
"""The number that TRL's worker adds to a standard deviation."""


class GroupScores(NamedTuple):
    """The scores of one group, in the order of its rollouts."""

    by_function: Mapping[str, Sequence[float | None]]
    """The rewards by function; None: the function gave no reward."""
    rewards: Sequence[float | None]
    """The sums of rewards; None: no function scored the rollout."""
    advantages: Sequence[float]
    """The advantages; 0.0 where there is no reward."""
    mean: float
    """The mean reward; NaN if no rollout was scored."""
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
                f"reward_funcs has {function!r}, which is not a function\n"
                "hint: call a reward model inside your own reward function, on messages or "
                "completions"
            )
    if not functions:
        raise ValueError(
            "reward_funcs is empty, so there is nothing to learn from\n"
            "hint: use reward_funcs=env_reward"
        )
    return functions


async def scores_of(
    functions: Sequence[RewardFunction],
    columns: Mapping[str, Any],
    can_be_scored: Sequence[bool],
    on_loop: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
) -> GroupScores:
    """Compute the rewards of a group.

    Args:
        functions: each is called once, with the columns; a synchronous one on a thread.
        columns: the arguments of each call, one value for each rollout.
        can_be_scored: whether each rollout can be scored; other rollouts get no reward, whatever a
            function returns.
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
    scale = _scale_of(scored.tolist())
    mean, std = float((scored / scale).mean()), float((scored / scale).std())
    advantages = [
        0.0 if reward is None else (reward / scale - mean) / (std + _LEAST) for reward in rewards
    ]
    return advantages, mean * scale, std * scale


class RowAdvantages(NamedTuple):
    """The advantages of the rows of a group."""

    advantages: list[list[float | None]]
    """The advantages, `[rollout][conversation]`; None: the conversation is not a row."""
    alone: list[bool]
    """For each rollout, whether one of its conversations has the advantage 0 because no other
    rollout of the group has a reward to compare with."""


def row_advantages(
    conversations: Sequence[Sequence[Branch]],
    scores: GroupScores,
    can_be_scored: Sequence[bool],
) -> RowAdvantages:
    """Return one advantage for each conversation of a group.

    A conversation with its own reward is judged by that reward alone, compared with the
    conversations of the same name in the other rollouts, with the baseline of `abut.trl.Returns`.
    Other conversations have the advantage of their rollout.

    Args:
        conversations: of each rollout, see `conversations_of`.
        scores: of the rollouts.
        can_be_scored: whether each rollout can be scored; other rollouts have no rows.
    """
    found: list[list[float | None]] = []
    paths: dict[str | None, list[PathReturns]] = defaultdict(list)
    every = [one for of_rollout in conversations for one in of_rollout]
    scale = _scale_of([one.reward for one in every if one.reward is not None])
    for k, of_rollout in enumerate(conversations):
        shared = None if scores.rewards[k] is None else scores.advantages[k]
        is_row = [one.trained and can_be_scored[k] for one in of_rollout]
        found.append([shared if is_one else None for is_one in is_row])
        for j, one in enumerate(of_rollout):
            if is_row[j] and one.reward is not None:
                paths[one.name].append(path_of((k, j), 0, one.reward / scale))
    alone = [False] * len(conversations)
    for of_name in paths.values():
        differences = list(compared(of_name, "none"))
        squares: dict[int, list[float]] = defaultdict(list)
        for path, (difference,), _ in differences:
            squares[path.place[0]].append(difference**2)
        std = math.sqrt(np.mean([np.mean(of_rollout) for of_rollout in squares.values()]))
        for path, (difference,), is_alone in differences:
            k, j = path.place
            found[k][j] = float(difference / (std + _LEAST))
            alone[k] |= is_alone
    return RowAdvantages(found, alone)


def _scale_of(rewards: Iterable[float]) -> float:
    """Return a divisor of rewards that keeps their ratios: above 1e154 squares overflow."""
    return max(1.0, max(map(abs, rewards), default=0.0) / _LARGEST)


async def _called(
    function: RewardFunction,
    columns: Mapping[str, Any],
    on_loop: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
) -> Any:
    if is_async_reward(function):
        return await on_loop(lambda: function(**columns))
    return await THREADS.ask(lambda: function(**columns))
