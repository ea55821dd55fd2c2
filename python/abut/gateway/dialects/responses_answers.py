"""OpenAI Responses: answers and events as JSON."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from abut.gateway.dialects.responses_tools import item_of_call
from abut.gateway.ledger.agent_call import AgentRequest, PolicyAnswer

_CUT = {"reason": "max_output_tokens"}
# The field that a delta fills, by the type of a call's item, and the name of its events.
_FILLED = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}


def response_body(answer: PolicyAnswer, request: AgentRequest, model: str) -> dict[str, Any]:
    """Return an answer as a `Response`."""
    cut = answer.finish_reason == "length"
    prompt, sampled = len(answer.prompt_ids), len(answer.ids)
    return {
        **_head(answer, request, model),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": _CUT if cut else None,
        "output": _items(answer, request),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + sampled,
        },
    }


def events(answer: PolicyAnswer, request: AgentRequest, model: str) -> Iterator[dict[str, Any]]:
    """Yield an answer as the events of a stream, all with the id of one response."""
    numbers = count()
    for event in _events(answer, request, model):
        yield {**event, "sequence_number": next(numbers)}


def _events(answer: PolicyAnswer, request: AgentRequest, model: str) -> Iterator[dict[str, Any]]:
    body = response_body(answer, request, model)
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    begun["incomplete_details"] = None
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(body["output"]):
        at = {"item_id": item["id"], "output_index": index}
        empty, deltas = _begun(item, at)
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        yield from deltas
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{body['status']}", "response": body}


def _head(answer: PolicyAnswer, request: AgentRequest, model: str) -> dict[str, Any]:
    echo = request.echo
    return {
        "id": answer.id,
        "object": "response",
        "created_at": answer.created,
        "model": model,
        "error": None,
        "background": False,
        "instructions": None,
        "max_output_tokens": request.max_tokens,
        "metadata": echo.get("metadata", {}),
        "parallel_tool_calls": echo.get("parallel_tool_calls", True),
        "previous_response_id": echo.get("previous_response_id"),
        "temperature": echo.get("temperature"),
        "tool_choice": "auto" if request.calls else "none",
        "tools": [],
        "top_p": echo.get("top_p"),
    }


def _items(answer: PolicyAnswer, request: AgentRequest) -> list[dict[str, Any]]:
    message, id_ = answer.message, answer.id.partition("_")[2]
    items: list[dict[str, Any]] = []
    if thinking := message.get("reasoning_content"):
        items.append(
            {
                "id": f"rs_{id_}",
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": thinking}],
                "encrypted_content": answer.handle,
            }
        )
    if text := message.get("content"):
        items.append(
            {
                "id": f"msg_{id_}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
        )
    for number, call in enumerate(message.get("tool_calls", ())):
        items.append({"id": f"fc_{id_}-{number}", **item_of_call(call, request.names)})
    return items


def _begun(
    item: dict[str, Any], at: dict[str, Any]
) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """Return the first, empty form of an item, and the events that fill it."""
    kind = item["type"]
    if kind == "message":
        return {**item, "status": "in_progress", "content": []}, _text_events(item, at)
    if kind == "reasoning":
        return {**item, "summary": []}, _summary_events(item, at)
    if kind in _FILLED:
        field, name = _FILLED[kind]
        empty = {**item, "status": "in_progress", field: ""}
        return empty, _argument_events(item, at, field, name)
    return item, iter(())


def _text_events(item: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = item["content"]
    at = {**at, "content_index": 0}
    empty = {**part, "text": ""}
    yield {"type": "response.content_part.added", **at, "part": empty}
    yield {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}


def _summary_events(item: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = item["summary"]
    at, text = {**at, "summary_index": 0}, part["text"]
    empty = {**part, "text": ""}
    yield {"type": "response.reasoning_summary_part.added", **at, "part": empty}
    yield {"type": "response.reasoning_summary_text.delta", **at, "delta": text}
    yield {"type": "response.reasoning_summary_text.done", **at, "text": text}
    yield {"type": "response.reasoning_summary_part.done", **at, "part": part}


def _argument_events(
    item: dict[str, Any], at: dict[str, Any], field: str, name: str
) -> Iterator[dict[str, Any]]:
    yield {"type": f"{name}.delta", **at, "delta": item[field]}
    yield {"type": f"{name}.done", **at, field: item[field]}
