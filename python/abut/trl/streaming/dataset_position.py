"""The position of training in its dataset, exact to the row.

Invariant: a group is done when each of its rows was trained, or never can be because the trainer
dropped it as too old or the group was not scored. A resumed run plays the groups that were not done
when the checkpoint was written; of a group that was trained in part, the checkpoint keeps the other
rows. So each row of the dataset is trained at most once, and no row is lost.

Rows are numbered as they are pushed. The trainer takes and packs them in that order, so one number
tells which rows were trained: the number of the last row in the last trained micro-batch. The
trainer does not report that number. So abut notes micro-batches when they are collated, one or more
ahead of training, and counts them when training reports that one is done.
"""

import base64
import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from abut.envs.source import ForTask
from abut.envs.task import RolloutTask
from abut.trl.dataset_images import refuse_images
from abut.trl.streaming.training_row import RolloutRow, RowMetrics
from abut.trl.tasks import Tasks

_ARRAYS = {"input_ids": "<i8", "completion_mask": "<u1", "old_log_probs": "<f4"}


class DatasetPosition:
    """The position of one worker's training; all methods may be called on any thread."""

    def __init__(self) -> None:
        self.is_followed = False
        """True if a callback reports what was trained; otherwise rows are not kept until then."""
        self._lock = threading.Lock()
        self._first = 0  # of the groups that are not done
        self._done: set[int] = set()  # after the last of those
        self._next = 0  # to be played
        self._left: dict[int, int] = {}  # rows of a group that were delivered and not trained yet
        self._begun: set[int] = set()  # groups of which a row was trained
        self._rows: deque[tuple[int, RolloutRow]] = deque()
        self._number = 0
        self._batches: deque[int] = deque()
        self._groups_trained = 0

    @property
    def groups_trained(self) -> int:
        """How many groups had a trained row, including those before the checkpoint."""
        with self._lock:
            return self._groups_trained

    def begin(self) -> int:
        """Return the number of the group to play next."""
        with self._lock:
            while self._next in self._done or self._next in self._left:
                self._next += 1
            self._next += 1
            return self._next - 1

    def deliver(self, group: int, rows: Sequence[RolloutRow]) -> None:
        """Note the rows of a group, which are about to be pushed in this order."""
        if not self.is_followed:
            return
        with self._lock:
            self._left[group] = self._left.get(group, 0) + len(rows)
            for row in rows:
                self._number += 1
                row.metrics.number = self._number
                self._rows.append((self._number, row))
            if not self._left[group]:
                self._end(group)

    def collated(self, examples: Any) -> None:
        """Note the rows of a micro-batch that the trainer has made."""
        numbers = [metrics.number for metrics in _metrics_in(examples)]
        with self._lock:
            self._batches.append(max(numbers, default=0))

    def trained(self) -> None:
        """Note that the trainer has trained the next collated micro-batch."""
        with self._lock:
            if not self._batches:
                return
            last = self._batches.popleft()
            while self._rows and self._rows[0][0] <= last:
                _, row = self._rows.popleft()
                self._groups_trained += row.group_id not in self._begun
                self._begun.add(row.group_id)
                self._left[row.group_id] -= 1
                if not self._left[row.group_id]:
                    self._end(row.group_id)

    def state(self, version: int) -> dict[str, Any]:
        """Return the state that a checkpoint keeps, as JSON values.

        Args:
            version: of the trainer's weights, from which the age of rows follows.
        """
        with self._lock:
            kept = [row for _, row in self._rows if row.group_id in self._begun]
            done = self._done | {row.group_id for row in kept}
            first = self._first
            while first in done:
                first += 1
            return {
                "first": first,
                "done": sorted(group for group in done if group > first),
                "groups_trained": self._groups_trained,
                "rows": [_portable(row, version) for row in kept],
            }

    def restore(
        self, state: Mapping[str, Any], version: int, *, as_lists: bool
    ) -> list[RolloutRow]:
        """Continue from the position of a checkpoint; return its kept rows, which must be pushed.

        Args:
            state: the result of `state`.
            version: of the weights that sample now.
            as_lists: see `rows_of_rollout`.
        """
        rows = [_row(each, version, as_lists=as_lists) for each in state["rows"]]
        kept = {row.group_id for row in rows}
        with self._lock:
            self._first = self._next = int(state["first"])
            self._done = set(map(int, state["done"])) - kept
            self._groups_trained = int(state["groups_trained"])
            # They count as begun, so the next checkpoint keeps them and they are not played again.
            self._begun |= kept
            for group in kept:
                self._left[group] = 0
            self._first = min([self._first, *kept])
            self._done |= set(range(self._first, int(state["first"]))) - kept
        return rows

    def _end(self, group: int) -> None:
        self._left.pop(group, None)
        self._begun.discard(group)
        self._done.add(group)
        while self._first in self._done:
            self._done.discard(self._first)
            self._first += 1


def _metrics_in(examples: Any) -> Iterator[RowMetrics]:
    """Yield the metrics of all rows that a collator gets, however this TRL version nests them."""
    if isinstance(examples, Mapping):
        if isinstance(metrics := examples.get("metrics"), RowMetrics):
            yield metrics
    elif isinstance(examples, list | tuple):
        for example in examples:
            yield from _metrics_in(example)
    elif (samples := getattr(examples, "samples", None)) is not None:  # from 1.16: a packed row
        yield from _metrics_in(samples)


def _portable(row: RolloutRow, version: int) -> dict[str, Any]:
    arrays = {
        name: base64.b64encode(np.asarray(getattr(row, name)).astype(type_).tobytes()).decode()
        for name, type_ in _ARRAYS.items()
    }
    metrics = {k: None if math.isnan(value) else value for k, value in row.metrics.items()}
    return arrays | {
        "prompt": list(row.prompt),
        "completion": list(row.completion),
        "advantage": row.advantage,
        "versions_behind": version - row.model_version,
        "group_id": row.group_id,
        "metrics": metrics,
        **({"teacher_id": row.teacher_id} if row.teacher_id else {}),
    }


def _row(kept: Mapping[str, Any], version: int, *, as_lists: bool) -> RolloutRow:
    ids, mask, logprobs = (
        np.frombuffer(base64.b64decode(kept[name]), type_) for name, type_ in _ARRAYS.items()
    )
    arrays = ids.astype(np.int64), mask.astype(np.int64), logprobs.astype(np.float32)
    input_ids, completion_mask, old_log_probs = (
        array.tolist() if as_lists else array for array in arrays
    )
    metrics = {k: math.nan if value is None else value for k, value in kept["metrics"].items()}
    return RolloutRow(
        kept["prompt"],
        kept["completion"],
        input_ids,
        completion_mask,
        old_log_probs,
        kept["advantage"],
        version - kept["versions_behind"],
        kept["group_id"],
        RowMetrics(metrics),
        teacher_id=kept.get("teacher_id", ""),
    )


class DatasetGroups:
    """An endless iterator over the groups of a dataset, in order, epoch after epoch.

    The number of a group determines its row, so a resumed run continues where the previous one
    stopped.

    Args:
        dataset: rows, by index (a `Dataset`, a list) or only one after the other (an
            `IterableDataset`).
        tasks: makes the tasks.
        position: says which group is next.
        for_task: completes a task for the engine.
        generations: the number of rollouts of a group.
    """

    def __init__(
        self,
        dataset: Any,
        tasks: Tasks,
        position: DatasetPosition,
        for_task: ForTask,
        generations: int,
    ) -> None:
        self._dataset = dataset
        self._tasks = tasks
        self._position = position
        self._for_task = for_task
        self._generations = generations
        self._rows: Iterator[Any] = iter(())
        self._passed = 0
        self._last: Mapping[str, Any] = {}

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sequence[RolloutTask]:
        """Return the tasks of the next group.

        Raises:
            ValueError: the dataset is empty, or a row cannot be played.
        """
        group = self._position.begin()
        tasks = self._tasks.of_group(self._row(group), group, self._generations)
        refuse_images(tasks)
        return [self._for_task(task) for task in tasks]

    def _row(self, group: int) -> Mapping[str, Any]:
        if hasattr(self._dataset, "__len__"):
            if not len(self._dataset):
                raise _empty()
            row: Mapping[str, Any] = self._dataset[group % len(self._dataset)]
            return row
        while self._passed <= group:
            if (row_or_end := next(self._rows, None)) is None:
                self._rows = iter(self._dataset)
                if (row_or_end := next(self._rows, None)) is None:
                    raise _empty()
            self._last, self._passed = row_or_end, self._passed + 1
        return self._last


def _empty() -> ValueError:
    return ValueError("train_dataset has no rows")
