"""The dataset of a run without batches: the tasks of one group after the other, for ever.

Invariant: the number of a group says which row it plays, so that a resumed run goes on where the
other was.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from abut.envs.source import ForTask
from abut.envs.task import RolloutTask
from abut.trl.async_place import Place
from abut.trl.tasks import Tasks


class DatasetGroups:
    """An endless iterator over the groups of a dataset, in its order, again and again.

    Args:
        dataset: rows, by place (a `Dataset`, a list) or only one after the other (an
            `IterableDataset`).
        tasks: makes them.
        place: says which group is next.
        for_task: completes a task for the engine.
        generations: how many rollouts a group has.
    """

    def __init__(
        self, dataset: Any, tasks: Tasks, place: Place, for_task: ForTask, generations: int
    ) -> None:
        self._dataset = dataset
        self._tasks = tasks
        self._place = place
        self._for_task = for_task
        self._generations = generations
        self._rows: Iterator[Any] = iter(())
        self._passed = 0
        self._last: Mapping[str, Any] = {}

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sequence[RolloutTask]:
        """The tasks of the next group.

        Raises:
            ValueError: the dataset is empty, or a row is none that can be played.
        """
        group = self._place.begin()
        tasks = self._tasks.of_group(self._row(group), group, self._generations)
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
    return ValueError("train_dataset has no rows: nothing can be played")
