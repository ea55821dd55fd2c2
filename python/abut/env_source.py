"""Environments that are made for a task: with tools for the chat template, and a look at the row.

Invariant: a source is never changed by what it is bound to, so one serves many trainers.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from abut.processor import PartsProcessor
from abut.rollout import RolloutTask

ForTask: TypeAlias = Callable[[RolloutTask], RolloutTask]


@runtime_checkable
class EnvSource(Protocol):
    """What `make_rollout_func` takes besides factories and pools."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """JSON schemas, which the chat template shows to the policy."""
        ...

    def bind(self, processor: PartsProcessor) -> ForTask:
        """Return what gives a task its environment, for conversations that `processor` writes.

        Raises:
            TypeError: the processor cannot read tool calls.
            TemplateError: its template writes none.
        """
        ...


def question_of(task: RolloutTask) -> str:
    """What the prompt asks: its text, or that of its last user message.

    `task.seed` is something else where the row has a column `seed`.
    """
    prompt = task.columns.get("prompt", task.seed)
    if isinstance(prompt, str):
        return prompt
    users = [message for message in prompt if message["role"] == "user"]
    return str(users[-1].get("content", "")) if users else ""


def bind_all(
    kinds: Iterable[Any], processor_with: Callable[[Sequence[Mapping[str, Any]]], PartsProcessor]
) -> tuple[PartsProcessor, ForTask]:
    """Bind the sources among `kinds`; return the first processor, and what completes a task.

    Args:
        kinds: what `RolloutTask.make_env` can be; at least one.
        processor_with: makes the processor whose template shows these tools, perhaps none.

    Raises:
        TypeError, TemplateError: as `EnvSource.bind`.
    """
    processors: dict[int, PartsProcessor] = {}
    bound: dict[int, ForTask] = {}
    plain: PartsProcessor | None = None
    for kind in kinds:
        if isinstance(kind, EnvSource):
            processors[id(kind)] = processor_with(kind.tools)
            bound[id(kind)] = kind.bind(processors[id(kind)])
        else:
            plain = processors[id(kind)] = plain or processor_with(())

    def for_task(task: RolloutTask) -> RolloutTask:
        kind = id(task.make_env)
        if kind in bound:
            task = bound[kind](task)
        return dataclasses.replace(task, processor=processors[kind])

    return next(iter(processors.values())), for_task
