"""Watches reward functions of the old API, because verifiers counts one that raises as 0.0.

Invariant: a rollout whose reward function raised, or returned anything but a finite number, has no
score. verifiers itself sees the same results as without the watch.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from abut.agents.dataset_agent import as_metrics, finite
from abut.errors import text_of

_WATCHED = "_abut_watched"


class Fault(NamedTuple):
    """A reward function that gave no score.

    Attributes:
        function: its name.
        why: what it raised or returned.
        counts: whether it is part of the reward; a metric, of weight 0, is not.
    """

    function: str
    why: str
    counts: bool


@dataclass
class Scoring:
    """One call of a rubric.

    Attributes:
        faults: the faults of each state, by the state's `id()`.
        judged: the states that a function has scored, by `id()`; True if the score is part of the
            reward.
    """

    faults: dict[int, list[Fault]] = field(default_factory=dict)
    judged: dict[int, bool] = field(default_factory=dict)

    def has_reward(self, state: Mapping[str, Any]) -> bool:
        """Return False if only metrics judged the state, so that its reward of 0 means nothing."""
        return self.judged.get(id(state), True)

    def score_of(self, state: Mapping[str, Any]) -> float | None:
        """Return the reward of a scored state, or None if it has no reward."""
        if not self.has_reward(state) or any(
            fault.counts for fault in self.faults.get(id(state), ())
        ):
            return None
        return finite(state.get("reward"))

    def metrics_of(self, state: Mapping[str, Any], name: str) -> dict[str, float]:
        """Return a state's metrics as extras `NAME/METRIC`, without metrics that failed."""
        failed = {fault.function for fault in self.faults.get(id(state), ())}
        metrics = state.get("metrics") or {}
        return as_metrics(name, {key: m for key, m in metrics.items() if key not in failed})

    def note(self, state: Any, *, counts: bool, fault: Fault | None) -> None:
        """Note that a function has scored a state."""
        self.judged[id(state)] = self.judged.get(id(state), False) or counts
        if fault is not None:
            self.faults.setdefault(id(state), []).append(fault)


_SCORING: ContextVar[Scoring | None] = ContextVar("abut_verifiers_scoring", default=None)
"""The call of a rubric that runs here: a rubric may score several rollouts at once."""


@contextmanager
def scoring() -> Iterator[Scoring]:
    """Collect the faults of watched functions that a rubric calls in this block."""
    made = Scoring()
    token = _SCORING.set(made)
    try:
        yield made
    finally:
        _SCORING.reset(token)


def watch_rubric(rubric: Any) -> bool:
    """Watch the functions of a rubric and its nested rubrics; return True if one scores groups."""
    scores_groups = False
    functions = rubric.funcs
    for index, function in enumerate(functions):
        of_group = rubric._is_group_func(function)
        scores_groups |= of_group
        if not hasattr(function, _WATCHED):
            functions[index] = _watched(function, rubric, index, of_group=of_group)
    inner = [*getattr(rubric, "rubrics", ())]
    inner += [env.rubric for env in getattr(rubric, "env_map", {}).values()]  # of an EnvGroup
    for one in inner:
        scores_groups |= watch_rubric(one)
    return scores_groups


def _watched(
    function: Callable[..., Any], rubric: Any, index: int, *, of_group: bool
) -> Callable[..., Any]:
    """Wrap a reward function, and note what it returns or raises.

    verifiers reads a function's signature to choose its arguments and to find group functions. So
    the wrapper keeps the signature, and adds `state` or `states` to know which rollouts are scored.
    """
    key = "states" if of_group else "state"
    signature = inspect.signature(function)
    parameters = [*signature.parameters.values()]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    is_passed_on = takes_any or key in signature.parameters
    name = getattr(function, "__name__", repr(function))

    def note(states: Sequence[Any], returned: Any, why: str | None = None) -> None:
        if (current := _SCORING.get()) is None:
            return
        counts = rubric.weights[index] != 0
        for state, value in zip(states, _each(returned, len(states), of_group), strict=True):
            is_score = why is None and _number(value) is not None
            fault = None if is_score else Fault(name, why or f"returned {value!r:.80}", counts)
            current.note(state, counts=counts, fault=fault)

    async def awaited(states: Sequence[Any], pending: Awaitable[Any]) -> Any:
        try:
            returned = await pending
        except Exception as error:
            note(states, None, f"raised {text_of(error)}")
            raise
        note(states, returned)
        return returned

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        scored = kwargs.get(key) if is_passed_on else kwargs.pop(key, None)
        states = [] if scored is None else scored if of_group else [scored]
        try:
            returned = function(*args, **kwargs)
        except Exception as error:
            note(states, None, f"raised {text_of(error)}")
            raise
        if inspect.isawaitable(returned):
            return awaited(states, returned)
        note(states, returned)
        return returned

    if not is_passed_on:
        parameters.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY))
    setattr(call, _WATCHED, True)
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def _each(returned: Any, count: int, of_group: bool) -> Sequence[Any]:
    """Return the function's result for each state, None where it is missing."""
    if not of_group:
        return [returned] * count
    try:
        values = list(returned)
    except TypeError:
        return [None] * count
    return [*values[:count], *[None] * (count - len(values))]


def _number(value: Any) -> float | None:
    """Return a reward as verifiers counts it, by `float(…)`, or None if it is not a number."""
    try:
        return finite(float(value))
    except (TypeError, ValueError, OverflowError):
        return None
