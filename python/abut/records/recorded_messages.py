"""Messages as records hold them, and the message that each turn of the policy was received as.

Invariant: in a file all messages have one type, three strings, whatever keys they have, and reading
returns them unchanged.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from abut.images import Image
from abut.messages import Message, json_copy, with_arguments
from abut.rollout.rollout import Branch, TurnRecord

TURN: Mapping[str, str] = {
    "start": "int32",
    "end": "int32",
    "finish_reason": "string",
    "generate_s": "float64",
    "env_s": "float64",
    "reward": "float64",
    "stop_token": "int32",
    "stop_string": "string",
    "stop_inside": "bool_",
    "model_version": "string",
    "newest_version": "int32",
    "answer_id": "string",
    "message": "int32",
    "spoken": "string",
}
"""The fields of a turn."""

MESSAGE: Mapping[str, str] = {"role": "string", "content": "string", "extra": "string"}
"""The fields of a message."""


def recorded_turns(
    turns: Sequence[TurnRecord], messages: Sequence[Message], shared: int = 0
) -> list[dict[str, Any]]:
    """Return the turns; the first `shared` of the messages are not recorded with them."""
    return [
        {name: getattr(turn, name) for name in TURN}
        | {
            "generate_s": round(turn.generate_s, 6),
            "env_s": round(turn.env_s, 6),
            "message": None if turn.message is None else turn.message - shared,
            "spoken": _spoken(turn, messages),
        }
        for turn in turns
    ]


def recorded_conversation(branch: Branch, tools: Sequence[Any]) -> dict[str, Any]:
    """Return the turns, messages and tools of a branch, without the messages before its fork."""
    last = branch.turns_before[-1].message if branch.turns_before else None
    shared = 0 if last is None else last + 1
    return {
        "turns": recorded_turns(branch.turns, branch.messages, shared),
        "messages": [portable(message) for message in branch.messages[shared:]],
        "tools": None if branch.tools == tools else json_of(list(branch.tools)),
    }


def _spoken(turn: TurnRecord, messages: Sequence[Message]) -> str | None:
    """Return the message of a turn as it was received, as JSON; None if it is only text.

    Thinking and content are slices of the recorded message, `[start, end]` in characters, because
    thinking is most of what a policy says and the record has it already.
    """
    said = turn.spoken
    if said is None or not (said.get("reasoning_content") or said.get("tool_calls")):
        return None
    whole = None if turn.message is None else messages[turn.message].get("content")
    told: dict[str, Any] = {}
    for name in ("reasoning_content", "content"):
        text = said.get(name)
        if not isinstance(text, str) or not text:
            continue
        at = whole.rfind(text) if isinstance(whole, str) else -1
        told[name] = text if at < 0 else [at, at + len(text)]
    if said.get("tool_calls"):
        told["tool_calls"] = with_arguments(said, "object")["tool_calls"]
    return json_of(told)


_ROLE_AND_TEXT = {"role", "content"}

# An agent may send its gateway anything, and a record that cannot be written ends the training.
_TOO_DEEP = "abut does not record what is nested this deeply"


def portable(message: Message) -> dict[str, Any]:
    """Return a message as three texts, so that all messages have one type in Parquet."""
    if message.keys() == _ROLE_AND_TEXT and isinstance(message["content"], str):
        return {**message, "extra": None}
    rest = json_copy(message, deeper=_TOO_DEEP)
    role, content = rest.pop("role", None), rest.get("content")
    if isinstance(content, str):
        del rest["content"]
    return {
        "role": role,
        "content": content if isinstance(content, str) else None,
        "extra": json_of(rest) if rest else None,
    }


def json_of(value: Any, *, sort_keys: bool = False) -> str:
    """Return the value as JSON, with the hash of each image.

    It is in ASCII, so that half a surrogate pair survives.
    """
    copied = json_copy(value, deeper=_TOO_DEEP)
    return json.dumps(copied, allow_nan=False, default=_hash_of, sort_keys=sort_keys)


def _hash_of(image: Image) -> str:
    return image.hash


def image_hashes(content: Any) -> list[str]:
    """Return the hashes that stand for images in the content of a recorded message."""
    return [
        block["image"]
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, Mapping)
        and block.get("type") == "image"
        and isinstance(block.get("image"), str)
    ]


def read_turns(turns: Sequence[Mapping[str, Any]] | None, messages: Sequence[Message]) -> list[Any]:
    """Return recorded turns with the message that each one said; None if it is only text."""
    # Older records have no such fields of turns.
    missing: dict[str, Any] = {"answer_id": None, "message": None, "spoken": None}
    told = [missing | {**turn} for turn in turns or ()]
    for turn in told:
        if turn["spoken"]:
            said = json.loads(turn["spoken"])
            for name in ("reasoning_content", "content"):
                if isinstance(said.get(name), list):
                    start, end = said[name]
                    said[name] = messages[turn["message"]]["content"][start:end]
            turn["spoken"] = said
    return told


def read_message(recorded: Mapping[str, Any]) -> Message:
    """Return a message as it was before it was recorded."""
    message: Message = {"role": recorded["role"]}
    if recorded["content"] is not None:
        message["content"] = recorded["content"]
    return message | (json.loads(recorded["extra"]) if recorded["extra"] else {})
