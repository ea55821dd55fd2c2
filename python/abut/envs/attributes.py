"""The attributes of the user's environment: `alive`, `reward` and `extras`, each checked.

Invariant: reading an attribute ends in a value or an `EnvError`, because a property is foreign
code. The caller decides on which thread or loop that code runs.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from abut.envs.foreign import placed_in, raised_by_env
from abut.envs.task import RolloutTask
from abut.errors import EnvError

Extras: TypeAlias = Mapping[str, float | str | None]
"""Columns for reward functions, by name."""

TAKEN_COLUMNS = frozenset(
    {"prompt_ids", "completion_ids", "logprobs", "env_mask", "env_reward", "env_step_rewards"}
    | {"num_turns", "stop_reason", "error", "rollout_id", "messages", "rollout_stats", "measured"}
    | {"environments", "prompts", "completions", "trainer_state", "log_extra", "log_metric"}
    | {"prompt", "completion"}  # TRL passes reward functions no column of such a name
)
"""The columns that abut and TRL pass to reward functions; extras must not replace them."""


def env_attribute(env: Any, name: str) -> Any:
    """Return an attribute of an env, or None if it does not exist.

    Raises:
        EnvError: reading the attribute raises.
    """
    try:
        return getattr(env, name, None)
    except BaseException as error:  # a property, or `__getattr__`
        raise raised_by_env(f"{type(env).__name__}.{name}", error) from error


def env_alive(env: Any) -> bool:
    """Return True until the episode has ended.

    Raises:
        EnvError: `alive` cannot be read, or is not a bool.
    """
    alive = env_attribute(env, "alive")
    if alive is not None and not callable(alive):
        try:
            return bool(alive)
        except BaseException as error:  # an array of several values
            raise raised_by_env(f"{type(env).__name__}.alive", error) from error
    raise placed_in(
        env,
        "step",
        f"{type(env).__name__}.alive must be True or False, got {shape_of(alive)}",
        "set alive in reset and step; if alive is a method, mark it with @property",
    )


def env_reward_value(env: Any) -> float | None:
    """Return the env's reward; None and NaN mean no score.

    Raises:
        EnvError: the reward is not a number, or is infinite.
    """
    reward = env_attribute(env, "reward")
    if reward is None:
        return None
    try:
        value = float(reward)
    except OverflowError:
        value = math.inf
    except BaseException:
        what = f"{type(env).__name__}.reward must be a number or None, got {shape_of(reward)}"
        raise placed_in(env, "step", what) from None
    if math.isinf(value):
        raise placed_in(
            env,
            "step",
            f"{type(env).__name__}.reward is {value}, but a group's baseline needs finite rewards",
            "set reward to None for an episode without a score",
        )
    return value


def env_extras(env: Any) -> Extras:
    """Return a copy of the env's extras, numbers as floats; empty if it has none.

    Raises:
        EnvError: they are not a dict, a key is not a string, or a value is neither a number, a
            string nor None.
    """
    extras = env_attribute(env, "extras")
    if extras is None:
        return {}
    name = f"{type(env).__name__}.extras"
    if not isinstance(extras, Mapping):
        raise placed_in(
            env,
            "step",
            f"{name} must be a dict from names to numbers and strings, got {shape_of(extras)}",
            "reward functions get the entries of extras; use another attribute for anything else",
        )
    try:
        items = list(extras.items())
    except BaseException as error:  # a mapping of the user's
        raise raised_by_env(name, error) from error
    return {_name_of(env, key): _value_of(env, key, value) for key, value in items}


def check_extras(extras: Extras, task: RolloutTask) -> None:
    """Refuse extras that would replace another column of reward functions.

    Raises:
        EnvError: a name is a column of the dataset, of abut or of TRL.
    """
    for name in extras:
        if name in TAKEN_COLUMNS:
            whose = "abut or TRL"
        elif name in task.columns or (name == "environment" and task.environment is not None):
            whose = "the dataset"
        else:
            continue
        made_by = getattr(task.source, "__name__", "the environment")
        raise EnvError(
            f"{made_by}: extras has {name!r}, which is a column of {whose}\n"
            "hint: use another name in extras"
        )


def _name_of(env: Any, key: Any) -> str:
    if isinstance(key, str):
        return key
    what = f"{type(env).__name__}.extras has a key that is not a string: {shape_of(key)}"
    raise placed_in(env, "step", what)


def _value_of(env: Any, key: Any, value: Any) -> float | str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return float(value)
    except BaseException:  # its `__float__` is foreign code
        what = f"must be a number, a string or None, got {shape_of(value)}"
        raise placed_in(
            env,
            "step",
            f"{type(env).__name__}.extras[{key!r}] {what}",
            "json.dumps(value) turns it into a string",
        ) from None


def shape_of(value: Any) -> str:
    """Return the type of a value and the beginning of its text, for errors."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}: {[type(v).__name__ for v in value]}"
    try:
        return f"{type(value).__name__}: {str(value)[:80]!r}"
    except BaseException:  # its `__str__` is foreign code
        return type(value).__name__
