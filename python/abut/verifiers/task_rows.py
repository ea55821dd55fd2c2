"""Tasks of a taskset as rows of a dataset, and back.

Invariant: a task comes out of the dataset exactly as it went in, or making the dataset fails.
"""

from collections.abc import Iterator
from typing import Any

from abut.agents.dataset_agent import JsonRow, choose, json_dataset, preview, row_text
from abut.envs.task import RolloutTask

COLUMN = "verifiers_task"
"""The dataset's column that holds the tasks."""


class TaskRows:
    """The rows of one taskset.

    Args:
        taskset: a `verifiers.v1.Taskset`.
        name: the environment's name.
    """

    def __init__(self, taskset: Any, name: str) -> None:
        self._taskset, self._name = taskset, name
        self._type = type(taskset).task_type()

    def dataset(self, n: int | None, *, shuffle: bool, seed: int) -> tuple[Any, list[Any]]:
        """Return a `datasets.Dataset` and the tasks in it; see `VerifiersEnv.dataset`.

        Raises:
            ValueError: the taskset is infinite and `n` is None, or a task does not survive JSON.
        """
        taskset = self._taskset
        if not taskset.bounded and n is None:
            raise ValueError(
                f"{self._name} has an endless stream of tasks\nhint: {self._name}.dataset(1000) "
                "takes the first 1000"
            )
        # A shuffle must load all tasks of a finite taskset, because it may pick any of them.
        first = taskset if n is None or (shuffle and taskset.bounded) else taskset.take(n)
        tasks = choose(list(first), n, shuffle=shuffle, seed=seed)
        return json_dataset(map(self._row, tasks), COLUMN, self._name), tasks

    def task_of(self, task: RolloutTask) -> Any:
        """Return the task of a rollout.

        Raises:
            UnplayableRow: the rollout's row holds no task.
        """
        text = row_text(task, COLUMN, self._name)
        data = self._type.data_type().model_validate_json(text)
        return self._type(data, self._taskset.config.task)

    def _row(self, task: Any) -> JsonRow:
        data = task.data
        text = data.model_dump_json()
        if (back := self._type.data_type().model_validate_json(text)) != data:
            changed = [key for key, value in data if getattr(back, key, None) != value]
            raise ValueError(
                f"task {row_id(task)} of {self._name}: JSON cannot represent {', '.join(changed)}\n"
                "hint: give the task's fields types that pydantic can write to JSON and read back"
            )
        prompt = data.prompt
        said = [("user", prompt)] if isinstance(prompt, str) else messages_of(task)
        shown = preview(said, otherwise=data.name or f"{self._name} {row_id(task)}")
        return JsonRow(shown, text, {"row_id": row_id(task)})


def row_id(task: Any) -> str:
    """Return the task's id in its source or, without one, its index in the taskset."""
    return str(task.data.idx if task.data.id is None else task.data.id)


def messages_of(task: Any) -> Iterator[tuple[str, Any]]:
    """Yield the role and content of each message; nothing if the prompt is a string or None."""
    prompt = task.data.prompt
    for message in prompt if isinstance(prompt, list) else ():
        yield message.role, message.content


def has_images(task: Any) -> bool:
    """Return whether the prompt of a task has images."""
    contents = [content for _, content in messages_of(task)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(part.type == "image_url" for part in parts)
