"""Environments that are made for a task: with tools for the chat template, and a look at the row.

Invariant: a source is never changed by what it is bound to, so one serves many trainers.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from abut.errors import TemplateError
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
            TemplateError: its template writes none, shows no tools, or takes no results of them.
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
    shown: dict[int, EnvSource] = {}
    plain: PartsProcessor | None = None
    for kind in kinds:
        if isinstance(kind, EnvSource):
            processors[id(kind)] = processor_with(kind.tools)
            _refuse_shared(processors[id(kind)], kind, shown)
            bound[id(kind)] = kind.bind(processors[id(kind)])
        else:
            plain = processors[id(kind)] = plain or processor_with(())

    def for_task(task: RolloutTask) -> RolloutTask:
        kind = id(task.make_env)
        if kind in bound:
            task = bound[kind](task)
        return dataclasses.replace(task, processor=processors[kind])

    return next(iter(processors.values())), for_task


def _refuse_shared(
    processor: PartsProcessor, source: EnvSource, shown: dict[int, EnvSource]
) -> None:
    """Refuse one processor for sources with different tools; `shown` has the first of each."""
    first = shown.setdefault(id(processor), source)
    if list(first.tools) == list(source.tools):
        return
    tools = [", ".join(tool["function"]["name"] for tool in s.tools) for s in (first, source)]
    raise TemplateError(
        f"one processor= for environments with different tools: {tools[0]}; {tools[1]}\n"
        "hint: leave processor= out, and each gets a template that shows its own"
    )
