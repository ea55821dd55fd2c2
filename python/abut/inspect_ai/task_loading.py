"""Loads tasks of Inspect, selects their samples, and refuses tasks that cannot be trained.

Invariant: a sample is the task's own object, because scorers may keep anything in it. The dataset
holds only its id, as JSON text, because ids are numbers or strings.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from abut.agents.dataset_agent import JsonRow, preview

SampleId: TypeAlias = str | int
SAMPLE = "inspect_sample"
"""The dataset's column of sample ids."""

_LOCAL = "local"
_TAKEN = ("text", "reasoning", "image")


def load_task(task: Any, args: Mapping[str, Any]) -> Any:
    """Return a `Task`, for the arguments of `inspect_task`.

    Raises:
        TypeError: `task` is not a task.
        ValueError: the file or package has no such task, or arguments are given for a `Task`.
        OSError, Exception: raised by reading or running the file.
    """
    from inspect_ai import Task

    if isinstance(task, Task):
        if args:
            raise ValueError(
                "task_args needs a function or a name, but you passed a Task\n"
                "hint: pass the function itself: inspect_task(my_task, task_args=…)"
            )
        return task
    if isinstance(task, str):
        made = _from_file(task, args) if ".py" in task else _from_registry(task, args)
    elif callable(task):
        made = task(**args)
    else:
        made = task
    if not isinstance(made, Task):
        raise TypeError(
            f"inspect_task({task!r}): {type(made).__name__} is not a Task of Inspect\n"
            'hint: pass a Task, a function with @task, "package/task" or "file.py@task"'
        )
    return made


def _from_file(spec: str, args: Mapping[str, Any]) -> Any:
    place, _, name = spec.partition("@")
    path = Path(place).resolve()
    module_spec = importlib.util.spec_from_file_location(f"_abut_inspect_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    # As in Inspect: a task file may import its neighbours, and open data by relative paths.
    sys.modules[module_spec.name] = module
    with contextlib.chdir(path.parent):
        sys.path.insert(0, str(path.parent))
        try:
            module_spec.loader.exec_module(module)
            found = _tasks_in(module)
            if not name and len(found) == 1:
                name = next(iter(found))
            if name not in found:
                listed = ", ".join(found) or "none"
                raise ValueError(
                    f"inspect_task({spec!r}): the tasks of {path.name} are {listed}\n"
                    "hint: name one of them, as in "
                    f'inspect_task("{place}@{next(iter(found), "task")}")'
                )
            return found[name](**args)
        finally:
            sys.path.remove(str(path.parent))


def _tasks_in(module: Any) -> dict[str, Any]:
    from inspect_ai.util import registry_info

    found = {}
    for name, value in vars(module).items():
        with contextlib.suppress(ValueError):  # it is not registered
            if callable(value) and registry_info(value).type == "task":
                found[name] = value
    return found


def _from_registry(name: str, args: Mapping[str, Any]) -> Any:
    from inspect_ai.util import registry_create

    try:
        made = registry_create("task", name, **args)
    except LookupError:
        raise ValueError(
            f"inspect_task({name!r}): Inspect does not know this task\n"
            "hint: install the task's package, or name the task of a file as in "
            'inspect_task("file.py@task")'
        ) from None
    # registry_create returns the function itself if it is not annotated to return a Task.
    return made(**args) if callable(made) else made


def load_samples(
    task: Any, limit: int | tuple[int, int] | None, chosen: SampleId | Sequence[SampleId] | None
) -> dict[SampleId, Any]:
    """Return a task's samples by id; those without ids are numbered from 1.

    Args:
        task: the task.
        limit: the first `limit` samples, or the samples from `start` to `end` for a pair.
        chosen: an id or several.

    Raises:
        ValueError: there are no samples, two have the same id, or an id does not exist.
    """
    if task.sample_source is not None:
        raise ValueError(
            f"{task.name} creates its samples while it runs (SampleSource), but training needs a "
            "dataset\nhint: give the task a dataset"
        )
    samples = {}
    seen = set()
    for number, sample in enumerate(task.dataset, start=1):
        id_ = number if sample.id is None else sample.id
        if str(id_) in seen:
            raise ValueError(f"{task.name} has two samples with the id {id_!r}")
        seen.add(str(id_))
        samples[id_] = sample
    if chosen is not None:
        ids = [chosen] if isinstance(chosen, str | int) else list(chosen)
        if missing := [id_ for id_ in ids if id_ not in samples]:
            shown = ", ".join(map(repr, list(samples)[:8]))
            raise ValueError(f"{task.name} has no sample {missing[0]!r}: it has {shown}, …")
        samples = {id_: samples[id_] for id_ in ids}
    if limit is not None:
        start, end = (0, limit) if isinstance(limit, int) else limit
        samples = {id_: samples[id_] for id_ in list(samples)[start:end]}
    if not samples:
        raise ValueError(
            f"{task.name} has no samples\nhint: check its dataset, limit and sample_id"
        )
    return samples


def check_sandbox(task: Any, samples: Collection[Any], sandbox: Any) -> None:
    """Refuse a task that runs the policy's commands on this machine, unless the user allows it.

    Args:
        task: the task.
        samples: its samples, which may have sandboxes of their own.
        sandbox: the user's choice, or None.

    Raises:
        ValueError: a sandbox is "local", and the user chose none.
    """
    if sandbox is not None:
        return
    used = [task.sandbox, *(sample.sandbox for sample in samples)]
    if any(one is not None and one.type == _LOCAL for one in used):
        raise ValueError(
            f'{task.name} has the sandbox "local", which runs the policy\'s commands on this '
            "machine\n"
            'hint: pass sandbox="docker" to run them in containers, or sandbox="local" to allow '
            "this"
        )


def row_of_sample(id_: SampleId, text: str, sample: Any, name: str) -> JsonRow:
    """Return the dataset's row for a sample.

    Args:
        id_: the sample's id.
        text: the id as JSON.
        sample: the sample.
        name: the task's name, for the error.

    Raises:
        ValueError: the sample has content that is not text or an image.
    """
    if strange := sorted(content_types(sample) - {*_TAKEN}):
        raise ValueError(
            f"sample {id_!r} of {name} has content of type {strange[0]!r}, but abut accepts only "
            "text and images\nhint: leave the sample out with sample_id= or limit="
        )
    said = (
        [("user", sample.input)]
        if isinstance(sample.input, str)
        else [(message.role, message.text) for message in sample.input]
    )
    return JsonRow(preview(said, str(id_)), text, {})


def content_types(sample: Any) -> set[str]:
    """Return the types of the parts in a sample's messages, such as "image"."""
    if isinstance(sample.input, str):
        return set()
    parts = (m.content for m in sample.input if isinstance(m.content, list))
    return {part.type for content in parts for part in content}
