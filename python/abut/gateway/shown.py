"""A client's messages as a chat template takes them.

Invariant: only what a template may show of a message gets there: its role and text, the thinking
and the calls of an answer, and which call a tool's message answers.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from abut.gateway.values import arguments_of, names_of_calls
from abut.messages import Message


def shown_messages(
    messages: Sequence[Message], names: Mapping[str, str], own_ids: Collection[str] = ()
) -> list[Message]:
    """Messages as a chat template takes them.

    Args:
        messages: a client's.
        names: of the tool that each call id has called.
        own_ids: call ids that the policy itself wrote; others are the gateway's, and not shown.
    """
    shown = []
    called: dict[str, str] = {}
    for message in messages:
        shown.append(_shown(message, names, own_ids, called))
        if message["role"] == "assistant":
            called |= names_of_calls(message)
    return shown


def _shown(
    message: Message, names: Mapping[str, str], own_ids: Collection[str], called: Mapping[str, str]
) -> Message:
    role, content = message["role"], message.get("content")
    shown: Message = {
        # Every template knows the older name of the same role.
        "role": "system" if role == "developer" else role,
        "content": content if isinstance(content, str) else _parts(content, role),
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


def _parts(content: Any, role: str) -> Any:
    """The text of parts; several of a question as parts, for the template to write."""
    parts = [] if content is None else content
    texts = [part if isinstance(part, str) else part.get("text") or "" for part in parts]
    if role not in ("system", "developer", "user") or len(texts) < 2:
        return "\n".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _shown_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    shown = {"name": function["name"], "arguments": arguments_of(function.get("arguments"))}
    id_ = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**id_, "type": "function", "function": shown}
