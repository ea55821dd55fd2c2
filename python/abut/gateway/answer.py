"""What a turn of the policy is answered with: the message, and the JSON and events around it.

Invariant: a message is a function of the text that was sampled; the tokens of all of it, calls that
are left out included, stay in the trajectory.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut._native import Tokenizer
from abut.errors import TemplateError
from abut.gateway.request import ChatRequest
from abut.messages import Message
from abut.processor import PartsProcessor
from abut.tool_calls.parse import ParsedCalls

_json_of = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` makes one for each call


@dataclass(frozen=True)
class Answer:
    """One turn, as a client gets it.

    Attributes:
        id: of the call.
        message: as `choices[0].message`, without tokens.
        finish_reason: `stop`, `length` or `tool_calls`.
        prompt_ids: `(P,)` int64: the request to the engine.
        ids: `(T,)` int64: what was sampled.
        logprobs: `(T,)` float32, nats.
        own_ids: call ids that the policy wrote itself.
        left_out: so many calls were sampled and not wanted.
        created: Unix time, seconds.
    """

    id: str
    message: Message
    finish_reason: str
    prompt_ids: NDArray[np.int64]
    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    own_ids: frozenset[str] = frozenset()
    left_out: int = 0
    created: int = 0


def answer_of(
    text: str,
    processor: PartsProcessor,
    request: ChatRequest,
    *,
    id: str,
    cut: bool,
    call_id: Callable[[str | None], str],
    prompt_ids: NDArray[np.int64],
    ids: NDArray[np.int64],
    logprobs: NDArray[np.float32],
) -> Answer:
    """Take a turn apart as a chat API would.

    Args:
        text: of the sample, up to what ended it.
        processor: knows how thinking and calls are written.
        request: says whether calls are wanted.
        id: of the call.
        cut: whether it was ended by length.
        call_id: gives a call an id that no other of the rollout has, from the one that the policy
            wrote.
        prompt_ids: see `Answer`.
        ids: see `Answer`.
        logprobs: see `Answer`.
    """
    reasoning, action = processor.parse_agent_output(text)
    message: Message = {"role": "assistant", "content": action}
    if reasoning:
        message["reasoning_content"] = message["reasoning"] = reasoning
    own_ids: set[str] = set()
    left_out = 0
    parsed = _parsed(processor, action) if request.tools and request.calls else None
    if parsed is not None and parsed.calls:
        calls = parsed.calls[: 1 if request.one_call else None]
        left_out = len(parsed.calls) - len(calls)
        broken = [action[call.start : call.end] for call in parsed.malformed]
        message["content"] = "\n".join(filter(None, [parsed.content, *broken])) or None
        message["tool_calls"] = []
        for call in calls:
            given = call_id(call.id)
            if given == call.id:
                own_ids.add(given)
            arguments = _json_of(call.arguments)
            function = {"name": call.name, "arguments": arguments}
            message["tool_calls"].append({"id": given, "type": "function", "function": function})
    return Answer(
        id=id,
        message=message,
        finish_reason="length" if cut else "tool_calls" if "tool_calls" in message else "stop",
        prompt_ids=prompt_ids,
        ids=ids,
        logprobs=logprobs,
        own_ids=frozenset(own_ids),
        left_out=left_out,
        created=int(time.time()),
    )


def _parsed(processor: PartsProcessor, action: str) -> ParsedCalls | None:
    parse = getattr(processor, "parse_tool_calls", None)
    if parse is None:
        return None
    try:
        parsed: ParsedCalls = parse(action)
    except TemplateError:  # the template writes no calls
        return None
    return parsed


def completion(
    answer: Answer, request: ChatRequest, model: str, tokenizer: Tokenizer
) -> dict[str, Any]:
    """The body of an answer."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": {**answer.message, **_tokens_of(answer, request)},
        "logprobs": _logprobs(answer, request, tokenizer),
        "finish_reason": answer.finish_reason,
    }
    body = {**_head(answer, model, "chat.completion"), "choices": [choice], "usage": _usage(answer)}
    if request.token_ids:  # where vLLM has them
        choice["token_ids"] = answer.ids.tolist()
        body["prompt_token_ids"] = answer.prompt_ids.tolist()
    return body


def events(
    answer: Answer, request: ChatRequest, model: str, tokenizer: Tokenizer
) -> Iterator[bytes]:
    """The same as server-sent events, without the last one."""
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
        yield event({**head, "choices": [_chunk(delta)]})
    last = _chunk(_tokens_of(answer, request), answer.finish_reason, logprobs)
    yield event({**head, "choices": [last]})
    if request.usage:
        yield event({**head, "choices": [], "usage": _usage(answer)})


DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _chunk(
    delta: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None
) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _head(answer: Answer, model: str, kind: str) -> dict[str, Any]:
    return {"id": answer.id, "object": kind, "created": answer.created, "model": model}


def _usage(answer: Answer) -> dict[str, int]:
    prompt, sampled = len(answer.prompt_ids), len(answer.ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _tokens_of(answer: Answer, request: ChatRequest) -> dict[str, Any]:
    """The three fields that NeMo Gym and others take tokens from, verbatim."""
    if not request.token_ids:
        return {}
    return {
        "prompt_token_ids": answer.prompt_ids.tolist(),
        "generation_token_ids": answer.ids.tolist(),
        "generation_log_probs": answer.logprobs.tolist(),
    }


def _logprobs(answer: Answer, request: ChatRequest, tokenizer: Tokenizer) -> Any:
    if not request.logprobs:
        return None
    return {"content": list(_each_logprob(answer.ids.tolist(), answer, request, tokenizer))}


def _each_logprob(
    ids: Sequence[int], answer: Answer, request: ChatRequest, tokenizer: Tokenizer
) -> Iterator[dict[str, Any]]:
    for id_, logprob in zip(ids, answer.logprobs.tolist(), strict=True):
        spelled = tokenizer.decode_bytes([id_])
        text = f"token_id:{id_}" if request.token_names else spelled.decode(errors="replace")
        yield {"token": text, "logprob": logprob, "bytes": list(spelled), "top_logprobs": []}
