"""Parts of agents that bring their own datasets: rows, scores, logs, and serving for a whole run.

Invariant: a row comes out of the dataset exactly as it went in, because the dataset stores it as
one JSON string; Arrow columns would add a null for each key that only other rows have. A score that
is missing or not finite is None, never 0.0.
"""

import math
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from abut.concurrency.serving import Serving as Serving
from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask

T = TypeVar("T")

_PREVIEW_CHARS = 2000
"""Enough for TRL's tables of completions; a prompt with a whole book would flood the terminal."""

Scores: TypeAlias = Mapping[str, float | None]
RewardChoice: TypeAlias = str | Callable[[Scores], float | None] | None
"""The name of the score that is the reward, or a function of all scores; None: the only one."""


class JsonRow(NamedTuple):
    """One row of a dataset.

    Attributes:
        prompt: the prompt, only for display; `preview` makes one.
        text: the row as JSON; `row_text` reads it back.
        columns: other columns, such as `row_id`; each row has the same names.
    """

    prompt: str
    text: str
    columns: Mapping[str, Any]


def json_dataset(rows: Iterable[JsonRow], column: str, name: str) -> Any:
    """Return rows as a `datasets.Dataset` for `GRPOTrainer(train_dataset=…)`.

    Its columns are `prompt`; `environment`, the agent's name, for a `dict` of environments; the
    rows' `columns`; and `column`.

    Args:
        rows: at least one.
        column: the name of the column with the JSON texts.
        name: the agent's name.

    Raises:
        ValueError: there are no rows.
    """
    from datasets import Dataset

    rows = list(rows)
    if not rows:
        raise ValueError(f"{name} has no rows")
    return Dataset.from_dict(
        {
            "prompt": [row.prompt for row in rows],
            "environment": [name] * len(rows),
            **{key: [row.columns[key] for row in rows] for key in rows[0].columns},
            column: [row.text for row in rows],
        }
    )


def choose(items: Sequence[T], n: int | None, *, shuffle: bool = False, seed: int = 0) -> list[T]:
    """Return the first `n` items, or a random choice of `n` of them in a random order.

    Args:
        items: all items.
        n: how many; None, or more than there are, takes all.
        shuffle: choose at random, and in a random order.
        seed: the same seed gives the same choice.

    Raises:
        ValueError: `n` is less than 1.
    """
    if n is not None and n < 1:
        raise ValueError(f"dataset(n={n!r}): must be at least 1, or None for all rows")
    chosen = list(items)
    if shuffle:
        random.Random(seed).shuffle(chosen)
    return chosen[:n]


def row_text(task: RolloutTask, column: str, name: str, *, dataset: str | None = None) -> str:
    """Return the JSON text of a task's row.

    Args:
        task: the task.
        column: the dataset's column with the JSON texts.
        name: the agent's name, for the error.
        dataset: the code that makes a dataset with this column, for the error; None:
            `NAME.dataset()`.

    Raises:
        UnplayableRow: the task has no such row.
    """
    text = task.columns.get(column)
    if isinstance(text, str):
        return text
    hint = f"use train_dataset={dataset or f'{name}.dataset()'}"
    if column in task.removed_columns:
        hint = "the trainer removed it; leave remove_unused_columns=True out"
    raise UnplayableRow(f"{name} needs the column {column!r} of its dataset\nhint: {hint}")


def preview(messages: Iterable[tuple[str, Any]], otherwise: str = "") -> str:
    """Return messages as text, for TRL's tables of completions.

    Args:
        messages: the role and content of each message, as in chat requests.
        otherwise: the result if no message has text.
    """
    said = [(role, text) for role, content in messages if (text := content_text(content))]
    if len(said) == 1:
        return said[0][1][:_PREVIEW_CHARS]
    # The end of a long conversation shows more of the task than its beginning.
    return "\n\n".join(f"{role}: {text}" for role, text in said)[-_PREVIEW_CHARS:] or otherwise


def content_text(content: Any) -> str:
    """Return the text of a message's content, a string or a list of parts; images have no text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    texts = (p.get("text") if isinstance(p, Mapping) else getattr(p, "text", None) for p in parts)
    return "".join(text for text in texts if isinstance(text, str))


def finite(value: Any) -> float | None:
    """Return a finite number or boolean as a float, and None for anything else."""
    if isinstance(value, str | bytes):  # float("0.5") would accept strings
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # an integer may be larger than any float
        return None
    return number if math.isfinite(number) else None


def as_metrics(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite values as extras that abut logs: `PREFIX/NAME`."""
    numbers = {f"{prefix}/{key}": finite(value) for key, value in values.items()}
    return {key: number for key, number in numbers.items() if number is not None}


def choose_reward(scores: Scores, reward: RewardChoice, name: str) -> float | None:
    """Return the reward of a rollout with these scores, or None if it has no score.

    Args:
        scores: the scores by name.
        reward: the user's choice.
        name: the agent's name, for the error.

    Raises:
        UnplayableRow: there are several scores and no choice, or there is no score of that name;
            training stops, because another rollout would have the same scores.
    """
    if callable(reward):
        return reward(scores)
    listed = ", ".join(map(repr, scores))
    if reward is None:
        if len(scores) > 1:
            raise UnplayableRow(
                f"{name} has {len(scores)} scores, so reward= must choose one: {listed}\n"
                f"hint: set reward={next(iter(scores))!r} to use one of them, or reward=lambda "
                "scores: … to combine them"
            )
        return finite(next(iter(scores.values()), None))
    if scores and reward not in scores:
        raise UnplayableRow(f"{name} has no score {reward!r}\nhint: its scores are {listed}")
    return finite(scores.get(reward))


def rollout_info(task: RolloutTask) -> dict[str, Any]:
    """Return a rollout's id, step and group as JSON values, for the log of an environment."""
    return {
        "rollout_id": task.rollout_id,
        "run_id": task.run_id or None,
        "step": task.step,
        "group": task.group,
        "generation": task.member,
        "mode": task.mode,
    }


class OutputFolder:
    """The folder in which an environment writes its logs.

    Args:
        path: the folder; None: a temporary one, which `delete` deletes.
        prefix: the first part of a temporary folder's name.
    """

    def __init__(self, path: str | PathLike[str] | None, prefix: str) -> None:
        self._given = None if path is None else Path(path)
        self._prefix = prefix
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def path(self) -> Path:
        """The folder; reading this property creates it."""
        if self._given is not None:
            self._given.mkdir(parents=True, exist_ok=True)
            return self._given
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(
                prefix=f"{self._prefix}-", ignore_cleanup_errors=True
            )
        return Path(self._temporary.name)

    def delete(self) -> None:
        """Delete a temporary folder; the next `path` creates a new one."""
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            temporary.cleanup()
