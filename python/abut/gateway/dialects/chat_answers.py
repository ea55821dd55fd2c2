"""Chat completions: answers, events and refusals as JSON."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from abut._native import Tokenizer
from abut.gateway.dialects.dialect import data_event
from abut.gateway.ledger.agent_call import AgentRequest, PolicyAnswer
from abut.gateway.ledger.refusal import CONVERSATION_FULL, LIMIT_REACHED, Refusal

DONE = b"data: [DONE]\n\n"
# Agents and SDKs stop cleanly on this code, because hosted models use it for a full context.
_FULL = "context_length_exceeded"


def completion(
    answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the JSON of an answer."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": {**answer.message, **_tokens_of(answer, request)},
        "logprobs": _logprobs(answer, request, tokenizer),
        "finish_reason": answer.finish_reason,
    }
    body = {**_head(answer, model, "chat.completion"), "choices": [choice], "usage": _usage(answer)}
    if request.token_ids:  # at the positions where vLLM has them
        choice["token_ids"] = answer.ids.tolist()
        body["prompt_token_ids"] = answer.prompt_ids.tolist()
    return body


def events(
    answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
) -> Iterator[bytes]:
    """Yield an answer as server-sent events."""
    head = _head(answer, model, "chat.completion.chunk")
    message = answer.message
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if thinking := message.get("reasoning_content"):
        deltas.append({"reasoning_content": thinking, "reasoning": thinking})
    if message["content"]:
        deltas.append({"content": message["content"]})
    for index, call in enumerate(message.get("tool_calls", ())):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    logprobs = _logprobs(answer, request, tokenizer)
    for delta in deltas:
        yield data_event({**head, "choices": [_chunk(delta)]})
    last = _chunk(_tokens_of(answer, request), answer.finish_reason, logprobs)
    yield data_event({**head, "choices": [last]})
    if request.usage:
        yield data_event({**head, "choices": [], "usage": _usage(answer)})
    yield DONE


def refusal_body(
    refusal: Refusal, as_full: Collection[str] = (CONVERSATION_FULL, LIMIT_REACHED)
) -> dict[str, Any]:
    """Return the JSON of a refusal, as OpenAI writes errors.

    Args:
        refusal: to report.
        as_full: the kinds that are reported as a full context. In chat completions every limit of a
            rollout is reported so, because NeMo Gym, verifiers and Inspect stop cleanly only on
            that error.
    """
    kind = "not_found_error" if refusal.status == 404 else "invalid_request_error"
    message, code = str(refusal), refusal.code
    if code in as_full:
        message, code = f"This rollout is at its maximum context length: {message}", _FULL
    return {"error": {"message": message, "type": kind, "param": refusal.param, "code": code}}


def _chunk(
    delta: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None
) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _head(answer: PolicyAnswer, model: str, kind: str) -> dict[str, Any]:
    return {"id": answer.id, "object": kind, "created": answer.created, "model": model}


def _usage(answer: PolicyAnswer) -> dict[str, int]:
    prompt, sampled = len(answer.prompt_ids), len(answer.ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _tokens_of(answer: PolicyAnswer, request: AgentRequest) -> dict[str, Any]:
    """Return the three fields that NeMo Gym and others read tokens from."""
    if not request.token_ids:
        return {}
    return {
        "prompt_token_ids": answer.prompt_ids.tolist(),
        "generation_token_ids": answer.ids.tolist(),
        "generation_log_probs": answer.logprobs.tolist(),
    }


def _logprobs(answer: PolicyAnswer, request: AgentRequest, tokenizer: Tokenizer) -> Any:
    if not request.logprobs:
        return None
    return {"content": list(_each_logprob(answer.ids.tolist(), answer, request, tokenizer))}


def _each_logprob(
    ids: Sequence[int], answer: PolicyAnswer, request: AgentRequest, tokenizer: Tokenizer
) -> Iterator[dict[str, Any]]:
    for id_, logprob in zip(ids, answer.logprobs.tolist(), strict=True):
        spelled = tokenizer.decode_bytes([id_])
        text = f"token_id:{id_}" if request.token_names else spelled.decode(errors="replace")
        yield {"token": text, "logprob": logprob, "bytes": list(spelled), "top_logprobs": []}
