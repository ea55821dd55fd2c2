"""A client's messages as a chat template takes them.

Invariant: only what a template may show of a message gets there: its role and text, the thinking
and the calls of an answer, and which call a tool's message answers.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from abut.errors import TemplateError, TokenizerError
from abut.gateway.refusal import Refusal, unwritten
from abut.gateway.values import arguments_of, calls_of, names_of_calls
from abut.messages import Message
from abut.processor import PartsProcessor

_QUOTED = 80


def shown_messages(
    messages: Sequence[Message],
    names: Mapping[str, str],
    own_ids: Collection[str] = (),
    *,
    joined: bool = False,
) -> list[Message]:
    """Messages as a chat template takes them.

    Args:
        messages: a client's.
        names: of the tool that each call id has called.
        own_ids: call ids that the policy itself wrote; others are the gateway's, and not shown.
        joined: whether text parts are joined by a newline; else the template writes them.
    """
    shown = []
    called: dict[str, str] = {}
    for message in messages:
        shown.append(_shown(message, names, own_ids, called, joined))
        if message["role"] == "assistant":
            called |= names_of_calls(message)
    return shown


def why_unwritten(
    messages: Sequence[Message], processor: PartsProcessor, error: Exception
) -> Refusal:
    """Return the refusal of shown messages that could not be written.

    It names the first call whose arguments are not the JSON of an object, if `{}` in the place of
    such arguments can be written.
    """
    wrong = ""
    mended: list[Message] = []
    for place, message in enumerate(messages):
        calls = []
        for number, call in enumerate(calls_of(message)):
            function = call["function"]
            if not isinstance(function["arguments"], Mapping):
                where = f"messages[{place}].tool_calls[{number}]"
                wrong = wrong or f"{where}, {_described(call)}"
                call = {**call, "function": {**function, "arguments": {}}}
            calls.append(call)
        mended.append({**message, "tool_calls": calls} if calls else message)
    if wrong:
        with suppress(TemplateError, TokenizerError):
            processor.opening(mended)
            return Refusal(wrong, param="messages")
    return unwritten(error)


def _described(call: Mapping[str, Any]) -> str:
    name, arguments = call["function"]["name"], repr(call["function"]["arguments"])
    id_ = f" with the id {call['id']!r}" if "id" in call else ""
    short = arguments if len(arguments) <= _QUOTED else f"{arguments[:_QUOTED]}…"
    return (
        f"a call of {name!r}{id_}, has arguments that are not the JSON of an object: {short}\n"
        "hint: send arguments as the JSON text of an object"
    )


def _shown(
    message: Message,
    names: Mapping[str, str],
    own_ids: Collection[str],
    called: Mapping[str, str],
    joined: bool,
) -> Message:
    role, content = message["role"], message.get("content")
    shown: Message = {
        "role": role,
        "content": content if isinstance(content, str) else _parts(content, joined),
    }
    if role == "assistant":
        thinking = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thinking, str):
            shown["reasoning_content"] = thinking
        if calls := message.get("tool_calls"):
            shown["tool_calls"] = [_shown_call(call) for call in calls]
    elif role == "tool":
        id_ = message.get("tool_call_id")
        known = names.get(id_) if isinstance(id_, str) else None
        name = message.get("name")
        here = called.get(id_) if isinstance(id_, str) else None
        shown["name"] = here or known or (name if isinstance(name, str) else "unknown")
        if isinstance(id_, str) and (known is None or id_ in own_ids):
            shown["tool_call_id"] = id_
    return shown


def _parts(content: Any, joined: bool) -> Any:
    """The text of one part; several as parts, for the template to write."""
    parts = [] if content is None else content
    texts = [part if isinstance(part, str) else part.get("text") or "" for part in parts]
    if joined or len(texts) < 2:
        return "\n".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _shown_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    shown = {"name": function["name"], "arguments": arguments_of(function.get("arguments"))}
    id_ = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**id_, "type": "function", "function": shown}
