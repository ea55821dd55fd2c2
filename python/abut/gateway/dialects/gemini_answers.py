"""Gemini generateContent: answers, chunks and errors as JSON."""

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

from abut.gateway.ledger.agent_call import PolicyAnswer
from abut.gateway.ledger.refusal import CONVERSATION_FULL, Refusal

_KINDS = {404: "NOT_FOUND", 500: "INTERNAL"}


def content_response(answer: PolicyAnswer, model: str) -> dict[str, Any]:
    """Return an answer as a `GenerateContentResponse`."""
    return _response(answer, model, _parts(answer), last=True)


def content_chunks(answer: PolicyAnswer, model: str) -> Iterator[dict[str, Any]]:
    """Yield an answer as the chunks of a stream: one for each part, none of them empty."""
    parts = _parts(answer)
    for part in parts[:-1]:
        yield _response(answer, model, [part], last=False)
    yield _response(answer, model, parts[-1:], last=True)


def error_body(refusal: Refusal) -> dict[str, Any]:
    """Return the JSON of a refusal; a full conversation gets the words that clients recognize."""
    message = str(refusal)
    if refusal.code == CONVERSATION_FULL:
        message = (
            f"The input token count ({refusal.tokens}) exceeds the maximum number of tokens "
            f"allowed ({refusal.most_tokens})."
        )
    kind = _KINDS.get(refusal.status, "INVALID_ARGUMENT")
    return {"error": {"code": refusal.status, "message": message, "status": kind}}


def _response(
    answer: PolicyAnswer, model: str, parts: Sequence[dict[str, Any]], *, last: bool
) -> dict[str, Any]:
    content = {"role": "model", "parts": list(parts)} if parts else {"role": "model"}
    candidate: dict[str, Any] = {"content": content, "index": 0}
    response: dict[str, Any] = {"candidates": [candidate]}
    if last:
        candidate["finishReason"] = "MAX_TOKENS" if answer.finish_reason == "length" else "STOP"
        prompt, sampled = len(answer.prompt_ids), len(answer.ids)
        response["usageMetadata"] = {
            "promptTokenCount": prompt,
            "candidatesTokenCount": sampled,
            "totalTokenCount": prompt + sampled,
        }
    return {**response, "modelVersion": model, "responseId": answer.id}


def _parts(answer: PolicyAnswer) -> list[dict[str, Any]]:
    message = answer.message
    thinking, text = message.get("reasoning_content"), message.get("content")
    parts: list[dict[str, Any]] = [{"text": thinking, "thought": True}] if thinking else []
    if text:
        parts.append({"text": text})
    first_call = len(parts)
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        made = {"id": call["id"], "name": function["name"], "args": arguments}
        parts.append({"functionCall": made})
    if thinking:  # on the first call, else on the last part
        signed = parts[first_call] if first_call < len(parts) else parts[-1]
        signed["thoughtSignature"] = base64.urlsafe_b64encode(answer.handle.encode()).decode()
    return parts
