"""Checks of the results of agents.

Invariant: rewards in a checked result are finite or None.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from abut.agents.protocol import NAME_HINT, AgentResult, is_name
from abut.envs.foreign import placed
from abut.errors import EnvError


def result_of(
    returned: Any,
    name: str,
    where: str,
    *,
    on_nan: Callable[[], None] | None = None,
    nan: float | None = None,
) -> AgentResult:
    """Return an agent's result, with rewards that are finite or None.

    Args:
        returned: the result of `run`.
        name: the name of the agent in errors.
        where: the location of its code, for the error.
        on_nan: called for a reward that is not finite, which is rarely intended.
        nan: the value that replaces such a reward.

    Raises:
        EnvError: the result is not a reward.
    """
    result = returned if isinstance(returned, AgentResult) else AgentResult(returned)

    try:
        _check_result(result)
        try:
            reward = score_of(result.reward, on_nan=on_nan, nan=nan)
        except TypeError:
            raise placed(
                EnvError(
                    f"{name} returned {type(result.reward).__name__}: expected a number, None or "
                    "an AgentResult\n"
                    "hint: return the reward, or None if there is no score"
                ),
                where,
            ) from None
        rewards = {
            key: score_of(value, on_nan=on_nan, nan=nan) for key, value in result.rewards.items()
        }
    except (TypeError, ValueError) as error:
        raise placed(EnvError(f"{name}: {error}"), where) from None
    return AgentResult(
        reward,
        dict(result.extras),
        result.messages,
        result.measured,
        rewards=rewards,
        names=dict(result.names),
    )


def score_of(
    value: Any,
    what: str = "AgentResult.rewards",
    *,
    on_nan: Callable[[], None] | None = None,
    nan: float | None = None,
) -> float | None:
    """Return a reward of `what` as a float, or None; see `result_of`.

    Raises:
        TypeError: it is neither a number nor None.
    """
    try:
        number = None if value is None else float(value)
    except OverflowError:
        number = math.inf
    except Exception:
        raise TypeError(
            f"{what} has a value of type {type(value).__name__}: expected a number or None"
        ) from None
    if number is None or math.isfinite(number):
        return number
    if on_nan is not None:
        on_nan()
    return nan


def _check_result(result: AgentResult) -> None:
    for attribute, what in (
        ("extras", "names"),
        ("rewards", "strings as keys"),
        ("names", "texts"),
    ):
        value = getattr(result, attribute)
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ValueError(f"AgentResult.{attribute} must be a dict with {what}")
    messages = result.messages
    if messages is not None and not all(isinstance(message, Mapping) for message in messages):
        raise ValueError("AgentResult.messages must be a list of messages")
    if not isinstance(result.measured, bool):
        raise ValueError(
            f"AgentResult.measured is {result.measured!r}, expected True or False\n"
            "hint: use False if nothing was measured"
        )
    for name in result.names.values():
        if not is_name(name):
            raise ValueError(
                f"AgentResult.names has {name!r}, which is not a valid name\nhint: {NAME_HINT}"
            )
