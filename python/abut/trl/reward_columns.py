"""The reward functions of a trainer, which abut wraps at the first batch.

Invariant: each function is wrapped once, in its place, with its name and asynchronous if it was; a
reward model stays what it is. Every batch is logged once, whatever functions there are.

TRL makes `completions` of the tokens after the `rollout_func` has returned, one message with the
text of all turns, and refuses a column of that name. So the wrapper hands over the messages.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abut.tools.environment_factory import EnvironmentFactory
from abut.tools.tool_env import ToolEnv
from abut.trl.metrics import log_batch
from abut.trl.rewards import RewardFunction, is_reward_model, named_like
from abut.trl.rows import COMPLETIONS

_WRAPPED = "__abut_columns__"


def has_tools(kinds: Iterable[Any]) -> bool:
    """Return whether any of these environments has functions that the policy calls."""
    return any(isinstance(kind, ToolEnv | EnvironmentFactory) for kind in kinds)


def wrap_reward_functions(trainer: Any) -> None:
    """Wrap the reward functions of a trainer, each once.

    TRL has read their names already, into `reward_func_names`. The list is another one afterwards,
    since TRL keeps the list that the user has passed.
    """
    trainer.reward_funcs = [
        _wrapped(function) if _can_be_wrapped(function) else function
        for function in trainer.reward_funcs
    ]


def _can_be_wrapped(function: Any) -> bool:
    is_function = callable(function) and not is_reward_model(function)
    return is_function and not getattr(function, _WRAPPED, False)


class ModelMetrics:
    """The metrics of a trainer that has only reward models, which cannot log.

    A callback adds the means since the last log to what TRL logs.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[dict[str, float]]] = {"train": [], "eval": []}
        self._followed: Any = None

    def add(self, trainer: Any, rows: Mapping[str, Any], mode: str) -> None:
        """Note a batch, on all ranks, unless a reward function logs it."""
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
    """The mean of each metric over the batches that have a number there."""
    names = dict.fromkeys(name for batch in batches for name in batch)
    means = {}
    for name in names:
        values = [batch[name] for batch in batches if not math.isnan(batch.get(name, math.nan))]
        means[name] = sum(values) / len(values) if values else math.nan
    return means


def _wrapped(function: RewardFunction) -> RewardFunction:
    def wrapped(*args: Any, **columns: Any) -> Any:
        return function(*args, **_handed_over(columns))

    async def wrapped_async(*args: Any, **columns: Any) -> Any:
        return await function(*args, **_handed_over(columns))

    wrapper = named_like(function, wrapped, wrapped_async)
    setattr(wrapper, _WRAPPED, True)
    return wrapper


def _handed_over(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a batch as the function gets them; logs the batch, if nobody has."""
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
