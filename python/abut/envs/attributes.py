"""The attributes of the user's environment: `alive`, `reward` and `extras`, each checked.

Invariant: a look at an attribute ends in a value or an `EnvError`, because a property is foreign
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
"""The names of what abut and TRL give reward functions, which no extra may replace."""


def env_attribute(env: Any, name: str) -> Any:
    """Return an attribute of an env, None where it has none.

    Raises:
        EnvError: to look at it raises.
    """
    try:
        return getattr(env, name, None)
    except BaseException as error:  # a property, or `__getattr__`
        raise raised_by_env(f"{type(env).__name__}.{name}", error) from error


def env_alive(env: Any) -> bool:
    """Return True while the environment goes on.

    Raises:
        EnvError: the env cannot say.
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
        "set it in reset and step; a method needs @property",
    )


def env_reward_value(env: Any) -> float | None:
    """Return the env's reward; None and NaN are no score.

    Raises:
        EnvError: the reward is no number, or infinite.
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
            f"{type(env).__name__}.reward is {value}, from which no baseline can be taken",
            "set it to None for an episode without a score",
        )
    return value


def env_extras(env: Any) -> Extras:
    """Return a copy of the env's extras, numbers as floats; empty if it has none.

    Raises:
        EnvError: they are not a dict, a name is not a text, or a value is neither a number, a text
            nor None.
    """
    extras = env_attribute(env, "extras")
    if extras is None:
        return {}
    name = f"{type(env).__name__}.extras"
    if not isinstance(extras, Mapping):
        raise placed_in(
            env,
            "step",
            f"{name} must be a dict of numbers and texts by name, got {shape_of(extras)}",
            "reward functions get what is in it; give an attribute for anything else another name",
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
            "hint: give it another name"
        )


def _name_of(env: Any, key: Any) -> str:
    if isinstance(key, str):
        return key
    what = f"{type(env).__name__}.extras has a name that is not a text: {shape_of(key)}"
    raise placed_in(env, "step", what)


def _value_of(env: Any, key: Any, value: Any) -> float | str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return float(value)
    except BaseException:  # its `__float__` is foreign code
        what = f"must be a number, a text or None, got {shape_of(value)}"
        raise placed_in(
            env,
            "step",
            f"{type(env).__name__}.extras[{key!r}] {what}",
            "json.dumps(value) makes a text of it",
        ) from None


def shape_of(value: Any) -> str:
    """Return the type of a value and the beginning of its text, for errors."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}: {[type(v).__name__ for v in value]}"
    try:
        return f"{type(value).__name__}: {str(value)[:80]!r}"
    except BaseException:  # its `__str__` is foreign code
        return type(value).__name__
