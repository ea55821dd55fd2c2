"""Rows of a test as a dataset, and back.

Invariant: a row comes out of the dataset as it went in, or the dataset is not made. Arrow would
fill the keys that some rows have and others not, so a row is one JSON text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from abut.envs.reset_keywords import UnplayableRow
from abut.envs.task import RolloutTask

ROW = "eval_row"
"""The column that holds a row."""

_OF_THE_MOMENT = {"created_at", "execution_metadata", "pid"}


def dataset_of(rows: Sequence[Any], name: str) -> Any:
    """A `datasets.Dataset` with the columns `prompt`, `row_id`, `environment` and the row.

    Args:
        rows: `EvaluationRow`s with ids.
        name: for the column `environment`.

    Raises:
        ValueError: a row is another one after JSON.
    """
    from datasets import Dataset

    return Dataset.from_dict(
        {
            "prompt": [_shown(row) for row in rows],
            "row_id": [row.input_metadata.row_id for row in rows],
            "environment": [name] * len(rows),
            ROW: [_text_of(row) for row in rows],
        }
    )


def row_of(task: RolloutTask, name: str) -> Any:
    """A fresh row of what a task has of the dataset.

    Raises:
        UnplayableRow: it has none.
    """
    from eval_protocol.models import EvaluationRow

    text = task.columns.get(ROW)
    if not isinstance(text, str):
        hint = f"train_dataset=eval_test(…).dataset() has it, for {name}"
        if ROW in task.removed_columns:
            hint = "the trainer took it out: leave remove_unused_columns=True out"
        raise UnplayableRow(f"{name} needs the column {ROW!r} of its dataset\nhint: {hint}")
    return EvaluationRow.model_validate_json(text)


def _text_of(row: Any) -> str:
    text: str = row.model_dump_json(exclude=_OF_THE_MOMENT)
    before = row.model_dump(exclude=_OF_THE_MOMENT)
    after = type(row).model_validate_json(text).model_dump(exclude=_OF_THE_MOMENT)
    if before != after:
        changed = [key for key in before if before[key] != after.get(key)]
        raise ValueError(
            f"row {row.input_metadata.row_id!r}: {', '.join(changed)} cannot be kept as JSON\n"
            "hint: lists, dicts with texts as keys, texts, numbers and booleans can"
        )
    return text


def _shown(row: Any) -> str:
    """What one sees of a row in TRL's tables: the rollout starts from its messages."""
    said = [message for message in row.messages if text_of(message)]
    if len(said) == 1:
        return text_of(said[0])
    lines = [f"{message.role}: {text_of(message)}" for message in said]
    return "\n\n".join(lines) or str(row.input_metadata.row_id)


def text_of(message: Any) -> str:
    """The text of a message, without images and the like."""
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part if isinstance(part, Mapping) else part.model_dump() for part in content]
    return "".join(str(part.get("text") or "") for part in parts)
