"""Environments created for a task, with tools for the chat template and access to the row.

Invariant: binding a source does not change it, so one source can serve many trainers.
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
    """Creates environments for tasks, in conversations that one processor writes."""

    make: Callable[[RolloutTask], Env | AsyncEnv]
    """Creates the environment of one attempt at a task."""
    name: str
    """The source's name in errors."""
    history: Callable[[RolloutTask], Sequence[Message]] = lambda task: task.messages
    """Returns the messages of a task that come before the environment's first reply."""
    keeps_last: bool = False
    """True to keep the environment of a task's last attempt as long as the task, for reward
    functions that need it."""
    spoken: Callable[[Sequence[Message]], list[Message]] | None = None
    """Returns copies of a conversation's messages in which the policy's calls are `tool_calls`;
    None without tools."""
    tools: Tools = ()
    """JSON schemas of the tools."""

    def complete(self, task: RolloutTask) -> RolloutTask:
        """Return the task with a source that creates its environments."""
        made = TaskEnvs(self, task)
        return dataclasses.replace(task, source=made, messages=self.history(task))


class TaskEnvs:
    """Creates the environments of one task, and may keep the one of the last attempt.

    If a constructor takes longer than its attempt, the environment is not kept, because another
    attempt is already playing.
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
        """Create an environment for one attempt."""
        self._attempts += 1
        attempt, self.last = self._attempts, None
        env = self._bound.make(self._task)
        if self._bound.keeps_last and attempt == self._attempts:
            self.last = env
        return env


def task_envs(task: RolloutTask) -> TaskEnvs | None:
    """Return the task's `TaskEnvs`; None if its environments do not come from an `EnvSource`."""
    return task.source if isinstance(task.source, TaskEnvs) else None


def question_of(task: RolloutTask) -> str:
    """Return the question of a prompt: the prompt, or the text of its last user message.

    `task.seed` differs from it if the row has a column `seed`.
    """
    prompt = task.columns.get("prompt", task.seed)
    return prompt if isinstance(prompt, str) else last_user_text(prompt)


def bind_all(
    kinds: Iterable[Any], processor_with: Callable[[Tools], PartsProcessor]
) -> tuple[PartsProcessor, ForTask]:
    """Bind the sources among `kinds`; return the first processor, and a function to complete tasks.

    Args:
        kinds: the possible values of `RolloutTask.source`; at least one.
        processor_with: creates a processor whose template shows these tools, if any.

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
    """Return a processor that shows these tools; a new one is added to `shown`."""
    for others, processor in shown:
        if list(others) == list(tools):
            return processor
    processor = processor_with(tools)
    for others, other in shown:
        if other is processor and others and tools:
            names = [", ".join(tool["function"]["name"] for tool in one) for one in (others, tools)]
            raise TemplateError(
                f"one processor= cannot serve environments with different tools: {names[0]}; "
                f"{names[1]}\n"
                "hint: leave processor= out, so that each environment's template shows its own "
                "tools"
            )
    shown.append((tools, processor))
    return processor
