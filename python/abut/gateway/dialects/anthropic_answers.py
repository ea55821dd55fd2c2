"""Anthropic Messages: answers, events and errors as JSON."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from abut.gateway.ledger.agent_call import PolicyAnswer
from abut.gateway.ledger.refusal import CONVERSATION_FULL, Refusal

THREADS_UNSUPPORTED = "thread_unsupported_request"
"""The error code that makes the SDK's tool runner send all messages of a thread."""

_KINDS = {404: "not_found_error", 405: "invalid_request_error", 500: "api_error"}
_FIELDS: Mapping[str, tuple[str, str]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
}


def message_body(answer: PolicyAnswer, model: str) -> dict[str, Any]:
    """Return an answer as a `Message`."""
    return {
        **_head(answer, model),
        "content": _blocks(answer),
        "stop_reason": _stop_reason(answer),
        "stop_sequence": _stop_sequence(answer),
        "usage": _usage(answer, len(answer.ids)),
    }


def events(answer: PolicyAnswer, model: str) -> Iterator[dict[str, Any]]:
    """Yield an answer as the events of a stream."""
    head = _head(answer, model)
    head |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(answer, 0)}
    yield {"type": "message_start", "message": head}
    for index, block in enumerate(_blocks(answer)):
        empty, deltas = _begun(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stopped = {"stop_reason": _stop_reason(answer), "stop_sequence": _stop_sequence(answer)}
    usage = _usage(answer, len(answer.ids))
    yield {"type": "message_delta", "delta": stopped, "usage": usage}
    yield {"type": "message_stop"}


def error_body(refusal: Refusal) -> dict[str, Any]:
    """Return the JSON of a refusal.

    A full conversation gets the words that make Claude Code compact it and continue. Other limits
    must not get these words, because Claude Code would ask for a summary, which would be refused
    too.
    """
    message = str(refusal)
    if refusal.code == CONVERSATION_FULL:
        message = f"prompt is too long: {refusal.tokens} tokens > {refusal.most_tokens} maximum"
    error: dict[str, Any] = {
        "type": _KINDS.get(refusal.status, "invalid_request_error"),
        "message": message,
    }
    if refusal.code == THREADS_UNSUPPORTED:
        error["details"] = {"error_code": THREADS_UNSUPPORTED, "unsupported": ["thread"]}
    return {"type": "error", "error": error}


def _head(answer: PolicyAnswer, model: str) -> dict[str, Any]:
    return {"id": answer.id, "type": "message", "role": "assistant", "model": model}


def _blocks(answer: PolicyAnswer) -> list[dict[str, Any]]:
    message = answer.message
    blocks: list[dict[str, Any]] = []
    if thinking := message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": thinking, "signature": answer.handle})
    if text := message.get("content"):
        blocks.append({"type": "text", "text": text})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        name = function["name"]
        blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": arguments})
    return blocks


def _begun(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the first, empty form of a block, and the deltas that fill it."""
    if block["type"] == "tool_use":
        text = json.dumps(block["input"], ensure_ascii=False)
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    delta, field = _FIELDS[block["type"]]
    deltas = [{"type": delta, field: block[field]}]
    empty = {**block, field: ""}
    if "signature" in block:
        empty["signature"] = ""
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    return empty, deltas


def _stop_reason(answer: PolicyAnswer) -> str:
    if answer.finish_reason == "stop":
        return "end_turn" if answer.stop_string is None else "stop_sequence"
    return {"length": "max_tokens", "tool_calls": "tool_use"}[answer.finish_reason]


def _stop_sequence(answer: PolicyAnswer) -> str | None:
    return answer.stop_string if _stop_reason(answer) == "stop_sequence" else None


def _usage(answer: PolicyAnswer, sampled: int) -> dict[str, int]:
    return {
        "input_tokens": len(answer.prompt_ids),
        "output_tokens": sampled,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
