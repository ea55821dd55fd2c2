"""Environments that are made for a task: with tools for the chat template, and a look at the row.

Invariant: a source is never changed by what it is bound to, so one serves many trainers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from abut.processor import PartsProcessor
from abut.rollout import RolloutTask

ForTask: TypeAlias = Callable[[RolloutTask], RolloutTask]


@runtime_checkable
class EnvSource(Protocol):
    """What `make_rollout_func` takes besides factories and pools.

    Attributes:
        tools: JSON schemas, which the chat template shows to the policy.
    """

    tools: Sequence[Mapping[str, Any]]

    def bind(self, processor: PartsProcessor) -> ForTask:
        """Return what gives a task its environment, for conversations that `processor` writes.

        Raises:
            TypeError: the processor cannot read tool calls.
            TemplateError: its template writes none.
        """
        ...
