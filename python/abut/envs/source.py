"""Environments that are made for a task: with tools for the chat template, and a look at the row.

Invariant: a source is never changed by what it is bound to, so one serves many trainers.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from abut.envs.env import AsyncEnv, Env
from abut.envs.task import Bound, EnvSource, RolloutTask, Tools
from abut.errors import TemplateError
from abut.messages import Message, last_user_text
from abut.processor import PartsProcessor

ForTask: TypeAlias = Callable[[RolloutTask], RolloutTask]


@dataclasses.dataclass(frozen=True)
class BoundSource:
    """Makes environments for tasks, in conversations that one processor writes."""

    make: Callable[[RolloutTask], Env | AsyncEnv]
    """Makes the environment of one attempt at a task."""
    name: str
    """Its name in errors."""
    history: Callable[[RolloutTask], Sequence[Message]] = lambda task: task.messages
    """Returns the part of a task's messages that stands before the environment's first reply."""
    keeps_last: bool = False
    """True if somebody asks for the environment of the last attempt: it then lives as long as its
    task, and so do those of the whole batch."""
    spoken: Callable[[Sequence[Message]], list[Message]] | None = None
    """Returns copies of a conversation's messages in which the policy's calls are `tool_calls`;
    None: it calls nothing."""
    tools: Tools = ()
    """JSON schemas of what it can call."""

    def complete(self, task: RolloutTask) -> RolloutTask:
        """Return the task with a source that makes its environments."""
        made = TaskEnvs(self, task)
        return dataclasses.replace(task, source=made, messages=self.history(task))


class TaskEnvs:
    """Makes the environments of one task; if that is wanted, keeps the one of its last attempt.

    An environment whose constructor outlasts its attempt is not kept: another attempt plays then.
    """

    def __init__(self, bound: BoundSource, task: RolloutTask) -> None:
        self.__name__ = bound.name
        self.spoken = bound.spoken
        self.tools = bound.tools
        self.last: Env | AsyncEnv | None = None
        self._bound = bound
        self._task = task
        self._attempts = 0

    def __call__(self) -> Env | AsyncEnv:
        """Make an environment for one attempt."""
        self._attempts += 1
        attempt, self.last = self._attempts, None
        env = self._bound.make(self._task)
        if self._bound.keeps_last and attempt == self._attempts:
            self.last = env
        return env


def task_envs(task: RolloutTask) -> TaskEnvs | None:
    """Return what makes its environments, if those were made for it by an `EnvSource`."""
    return task.source if isinstance(task.source, TaskEnvs) else None


def question_of(task: RolloutTask) -> str:
    """Return the question of a prompt: its text, or that of its last user message.

    `task.seed` is something else where the row has a column `seed`.
    """
    prompt = task.columns.get("prompt", task.seed)
    return prompt if isinstance(prompt, str) else last_user_text(prompt)


def bind_all(
    kinds: Iterable[Any], processor_with: Callable[[Tools], PartsProcessor]
) -> tuple[PartsProcessor, ForTask]:
    """Bind the sources among `kinds`; return the first processor, and what completes a task.

    Args:
        kinds: what `RolloutTask.source` can be; at least one.
        processor_with: makes the processor whose template shows these tools, perhaps none.

    Raises:
        TypeError, TemplateError: as `EnvSource.bind`.
    """
    processors: dict[int, PartsProcessor] = {}
    bound: dict[int, Bound] = {}
    shown: list[tuple[Tools, PartsProcessor]] = []
    for kind in kinds:
        tools = kind.tools if isinstance(kind, EnvSource) else ()
        processors[id(kind)] = _processor_of(tools, shown, processor_with)
        if isinstance(kind, EnvSource):
            bound[id(kind)] = kind.bind(processors[id(kind)])

    def for_task(task: RolloutTask) -> RolloutTask:
        kind = id(task.source)
        if kind in bound:
            task = bound[kind].complete(task)
        return dataclasses.replace(task, processor=processors[kind])

    return next(iter(processors.values())), for_task


def _processor_of(
    tools: Tools,
    shown: list[tuple[Tools, PartsProcessor]],
    processor_with: Callable[[Tools], PartsProcessor],
) -> PartsProcessor:
    """Return a processor that shows these tools; `shown` has those there are, and gets it."""
    for others, processor in shown:
        if list(others) == list(tools):
            return processor
    processor = processor_with(tools)
    for others, other in shown:
        if other is processor and others and tools:
            names = [", ".join(tool["function"]["name"] for tool in one) for one in (others, tools)]
            raise TemplateError(
                f"one processor= for environments with different tools: {names[0]}; {names[1]}\n"
                "hint: leave processor= out, and each gets a template that shows its own"
            )
    shown.append((tools, processor))
    return processor
