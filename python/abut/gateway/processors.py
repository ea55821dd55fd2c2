"""What writes a conversation with these tools: one processor for all requests that name them.

Invariant: requests with equal tools and variables share a processor, however many come at once, and
it is made once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from abut._native import Tokenizer
from abut.concurrency.threads import THREADS
from abut.errors import AbutError, text_of
from abut.gateway.refusal import Refusal, said_to_client
from abut.gateway.request import ROLES, ChatRequest
from abut.messages import Message
from abut.processor import PartsProcessor
from abut.tools.answers import ToolAnswers

MakeProcessor: TypeAlias = Callable[[Sequence[Any] | None, Mapping[str, Any]], PartsProcessor]
"""Makes one of tools and of variables for the template."""

_KEPT = 64
_NEWLINES: Mapping[str, str | None] = dict.fromkeys(ROLES, "\n")


@dataclass(frozen=True)
class Shown:
    """What writes a conversation.

    Attributes:
        processor: it.
        answers: gives what tools say the form that the template takes; None where there are none.
    """

    processor: PartsProcessor
    answers: ToolAnswers | None

    @cached_property
    def joins(self) -> bool:
        """True if the processor is the user's own, which gets text parts joined by a newline."""
        return not hasattr(self.processor, "text_joints")

    @cached_property
    def joints(self) -> Mapping[str, str | None]:
        """By role, what stands in the row between two text parts.

        None: what stands there does not make one string of them.
        """
        joints: Mapping[str, str | None] = getattr(self.processor, "text_joints", _NEWLINES)
        return joints

    def written(self, messages: Sequence[Message]) -> list[Message]:
        """Messages that follow a turn, those of tools in the form that the template takes."""
        if self.answers is None:
            return list(messages)
        written: list[Message] = []
        tools: list[Message] = []
        for message in messages:
            if message["role"] == "tool":
                tools.append(message)
                continue
            if tools:
                written += self.answers.written(tools)
                tools = []
            written.append(message)
        return written + (self.answers.written(tools) if tools else [])


class Writing(NamedTuple):
    """The tokenizer of a run, and the processors of its template that write conversations."""

    tokenizer: Tokenizer
    processors: "Processors"


class Processors:
    """Those of one gateway; of one loop. The least used goes where there are too many."""

    def __init__(self, make: MakeProcessor) -> None:
        self._make = make
        self._made: OrderedDict[str, asyncio.Future[Shown]] = OrderedDict()

    async def of(self, request: ChatRequest) -> Shown:
        """What writes the conversation of a request.

        Raises:
            Refusal: none can: the template does not take these tools, or shows them not.
        """
        frame = request.frame
        made = self._made.get(frame)
        if made is None:
            made = self._made[frame] = asyncio.ensure_future(self._begin(request))
            if len(self._made) > _KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(frame)
        try:
            return made.result() if made.done() else await asyncio.shield(made)
        except (AbutError, TypeError, ValueError) as error:
            self._made.pop(frame, None)
            param = "tools" if request.tools else "chat_template_kwargs"
            raise Refusal(
                f"no conversation can be written with these tools and chat_template_kwargs: "
                f"{said_to_client(error) if isinstance(error, AbutError) else text_of(error)}",
                param=param,
            ) from error

    async def _begin(self, request: ChatRequest) -> Shown:
        def make() -> Shown:
            processor = self._make(request.tools, request.template_kwargs)
            answers = ToolAnswers(processor, request.tools) if request.tools else None
            return Shown(processor, answers)

        return await THREADS.ask(make)
