"""Writers of conversations: a processor for each set of tools, and messages in its format.

Invariant: requests with equal tools and variables share a writer, which is made once even for
concurrent requests. A template gets only the parts of a message that it may show: role and text,
the thinking and calls of an answer, and the call that a tool's message answers.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from abut._native import Tokenizer
from abut.concurrency.threads import THREADS
from abut.errors import AbutError, TemplateError, TokenizerError, text_of
from abut.gateway.ledger.agent_call import ROLES, AgentRequest
from abut.gateway.ledger.comparable import (
    arguments_of,
    calls_of,
    names_of_calls,
    texts_and_images,
)
from abut.gateway.ledger.refusal import Refusal, said_to_client, short, unwritten
from abut.gateway.ledger.system_messages import SystemMessages
from abut.messages import Message, blocks_of, images_of
from abut.processor import CallReadingProcessor, PartsProcessor, WritesImages
from abut.tools.tool_messages import ToolAnswers

MakeProcessor: TypeAlias = Callable[[Sequence[Any] | None, Mapping[str, Any]], PartsProcessor]
"""Makes a processor from tools and template variables."""

_KEPT = 64
_SHOW_IMAGES = ("user", "tool", "system")
_QUOTED = 80
_NEWLINES: Mapping[str, str | None] = dict.fromkeys(ROLES, "\n")


@dataclass(frozen=True)
class Writer:
    """Writes the messages of conversations that have the same tools and template variables.

    Attributes:
        processor: renders messages.
        answers: converts tool messages for the template; None without tools.
    """

    processor: PartsProcessor
    answers: ToolAnswers | None

    @cached_property
    def call_reader(self) -> CallReadingProcessor | None:
        """The processor, if it reads calls.

        Cached, because `isinstance` with a protocol takes 40 microseconds.
        """
        return self.processor if isinstance(self.processor, CallReadingProcessor) else None

    @cached_property
    def joins(self) -> bool:
        """True if the processor is the user's own; it gets text parts joined by a newline."""
        return not hasattr(self.processor, "text_joints")

    @cached_property
    def joints(self) -> Mapping[str, str | None]:
        """The text that joins two text parts of one message in the row, by role.

        A template may join parts with nothing, or with more, such as a line break. With this text,
        an answer that a client returns in parts is compared with the string that it was. None: the
        template writes something between parts that a string cannot have.
        """
        joints: Mapping[str, str | None] = getattr(self.processor, "text_joints", _NEWLINES)
        return joints

    @cached_property
    def system_messages(self) -> SystemMessages:
        """Moves system messages to where the template can show them."""
        return SystemMessages(self.processor, self.written)

    def written(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages that follow a turn, with tool messages converted for the template."""
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


class RunWriters(NamedTuple):
    """The tokenizer of a run, and the writers of its template."""

    tokenizer: Tokenizer
    writers: "Writers"


class Writers:
    """The writers of one gateway, on its loop, at most 64; the least recently used is dropped."""

    def __init__(self, make: MakeProcessor) -> None:
        self._make = make
        self._made: OrderedDict[str, asyncio.Future[Writer]] = OrderedDict()

    async def of(self, request: AgentRequest) -> Writer:
        """Return the writer for a request.

        Raises:
            Refusal: the template does not accept these tools, or does not show them.
        """
        frame = request.frame
        made = self._made.get(frame)
        if made is None:
            made = self._made[frame] = asyncio.ensure_future(self._make_writer(request))
            if len(self._made) > _KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(frame)
        try:
            return made.result() if made.done() else await asyncio.shield(made)
        except (AbutError, TypeError, ValueError) as error:
            self._made.pop(frame, None)
            param = "tools" if request.tools else "chat_template_kwargs"
            raise Refusal(
                "the chat template fails with these tools and chat_template_kwargs: "
                f"{said_to_client(error) if isinstance(error, AbutError) else text_of(error)}",
                param=param,
            ) from error

    async def _make_writer(self, request: AgentRequest) -> Writer:
        def make() -> Writer:
            processor = self._make(request.tools, request.template_kwargs)
            answers = ToolAnswers(processor, request.tools) if request.tools else None
            return Writer(processor, answers)

        return await THREADS.ask(make)


def image_roles(processor: PartsProcessor, *, sampled: bool) -> Collection[str]:
    """Return the roles in whose messages a policy takes images; empty if it takes only text.

    Args:
        processor: writes its conversations.
        sampled: whether the sampler takes images.
    """
    if not (sampled and isinstance(processor, WritesImages) and processor.media_token_ids):
        return ()
    report = getattr(processor, "report", None)
    # A user's own processor raises when it writes, if it does not take images there.
    return _SHOW_IMAGES if report is None else tuple(report.image_roles)


def template_messages(
    messages: Sequence[Message],
    names: Mapping[str, str],
    own_ids: Collection[str] = (),
    *,
    joined: bool = False,
) -> list[Message]:
    """Return a client's messages as a chat template takes them.

    Args:
        messages: of a client.
        names: the tool that each call names, by the call's id.
        own_ids: call ids that the policy wrote itself. Other ids are the gateway's and are not
            shown.
        joined: whether text parts are joined by a newline; otherwise the template writes them.
    """
    taken = []
    called: dict[str, str] = {}
    for message in messages:
        taken.append(_template_message(message, names, own_ids, called, joined))
        if message["role"] == "assistant":
            called |= names_of_calls(message)
    return taken


def why_unwritten(
    messages: Sequence[Message], processor: PartsProcessor, error: Exception
) -> Refusal:
    """Return the refusal of messages that the template could not write.

    If the messages can be written with `{}` instead of arguments that are not a JSON object, the
    refusal names the first call with such arguments.
    """
    wrong = ""
    repaired: list[Message] = []
    for place, message in enumerate(messages):
        calls = []
        for number, call in enumerate(calls_of(message)):
            function = call["function"]
            if not isinstance(function["arguments"], Mapping):
                where = f"messages[{place}].tool_calls[{number}]"
                wrong = wrong or f"{where}, {_described(call)}"
                call = {**call, "function": {**function, "arguments": {}}}
            calls.append(call)
        repaired.append({**message, "tool_calls": calls} if calls else message)
    if wrong:
        with suppress(TemplateError, TokenizerError):
            processor.opening(repaired)
            return Refusal(wrong, param="messages")
    return unwritten(error)


def _described(call: Mapping[str, Any]) -> str:
    name, arguments = call["function"]["name"], repr(call["function"]["arguments"])
    id_ = f" with the id {short(call['id'])}" if "id" in call else ""
    quoted = arguments if len(arguments) <= _QUOTED else f"{arguments[:_QUOTED]}…"
    return (
        f"a call of {short(name)}{id_}, has arguments that are not a JSON object: {quoted}\n"
        "hint: send arguments as the JSON text of an object"
    )


def _template_message(
    message: Message,
    names: Mapping[str, str],
    own_ids: Collection[str],
    called: Mapping[str, str],
    joined: bool,
) -> Message:
    role, content = message["role"], message.get("content")
    taken: Message = {
        "role": role,
        "content": content if isinstance(content, str) else _parts(content, joined),
    }
    if role == "assistant":
        thinking = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thinking, str):
            taken["reasoning_content"] = thinking
        if calls := message.get("tool_calls"):
            taken["tool_calls"] = [_template_call(call) for call in calls]
    elif role == "tool":
        id_ = message.get("tool_call_id")
        known = names.get(id_) if isinstance(id_, str) else None
        name = message.get("name")
        here = called.get(id_) if isinstance(id_, str) else None
        taken["name"] = here or known or (name if isinstance(name, str) else "unknown")
        if isinstance(id_, str) and (known is None or id_ in own_ids):
            taken["tool_call_id"] = id_
    return taken


def _parts(content: Any, joined: bool) -> Any:
    """Return the text of a single part, or several parts for the template to write."""
    parts = [] if content is None else content
    if images_of(parts):
        return blocks_of(texts_and_images(parts) or ())
    texts = [part if isinstance(part, str) else part.get("text") or "" for part in parts]
    if joined or len(texts) < 2:
        return "\n".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _template_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    taken = {"name": function["name"], "arguments": arguments_of(function.get("arguments"))}
    id_ = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**id_, "type": "function", "function": taken}
