"""The dataset's columns of the prompts that TRL hands to a `rollout_func`.

Invariant: column values belong to the prompt at the same position of the same batch, or there are
none. Nothing of the trainer is changed.

TRL passes prompts and no other column. The rows are in its method
`_generate_and_score_completions(inputs)`, in all versions from 0.29.1 to 1.16, which calls the
`rollout_func` and waits for it. So they are read there, in its frame. Wrapping that method comes
too late for the first batch when the `rollout_func` does it (the trainer exists from its first call
on, and that one is inside the method already), and before that only for every trainer of the
process, through the class, and not for subclasses with a method of their own.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

_METHOD = "_generate_and_score_completions"


def dataset_columns(trainer: Any, prompts: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the dataset's row of each prompt; empty ones where the trainer has none.

    Raises:
        ValueError: there are not as many rows as prompts, so none can be told to be a prompt's.
    """
    frame = _frame_of(trainer)
    if frame is None:
        return [{}] * len(prompts)
    inputs = frame.f_locals[frame.f_code.co_varnames[1]]
    if len(inputs) != len(prompts):
        raise ValueError(
            f"{type(trainer).__name__}.{_METHOD} has {len(inputs)} rows, but rollout_func got "
            f"{len(prompts)} prompts: no telling which row is a prompt's\n"
            "hint: rollout_func must get the prompts of the batch as TRL passes them"
        )
    return list(inputs)


def removed_columns(trainer: Any, mode: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of the dataset that the trainer took out of its rows.

    Args:
        trainer: has `remove_unused_columns`, and the dataset as it was given.
        mode: "train" or "eval".
        row: one of those that `dataset_columns` returned.
    """
    if not row or not getattr(trainer.args, "remove_unused_columns", False):
        return ()
    dataset = getattr(trainer, f"{mode}_dataset", None)
    parts = dataset.values() if isinstance(dataset, Mapping) else [dataset]
    names = [name for part in parts for name in getattr(part, "column_names", None) or ()]
    return tuple(name for name in dict.fromkeys(names) if name not in row)


def _frame_of(trainer: Any) -> FrameType | None:
    """The innermost call of the trainer's method on this thread; a subclass's may be around it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if (
            code.co_name == _METHOD
            and code.co_argcount == 2
            and frame.f_locals[code.co_varnames[0]] is trainer
        ):
            return frame
        frame = frame.f_back
    if hasattr(trainer, _METHOD):
        logger.warning(
            "rollout_func was not called by %s.%s on this thread: no dataset column reaches an "
            "environment but those in prompt[-1]['row']",
            type(trainer).__name__,
            _METHOD,
        )
    return None
