"""Chat completions: bodies to requests, and answers, events and refusals to JSON.

Invariant: each field of a body is honoured, refused, or named in a warning as ignored. None changes
the prompt or the sample silently.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from abut._native import Tokenizer
from abut.gateway.dialects.chat_rewrites import REWRITES, ChatRewrites
from abut.gateway.ledger.agent_call import ROLES, AgentRequest, PolicyAnswer
from abut.gateway.ledger.comparable import MOST_DEPTH, is_deep, text_of
from abut.gateway.ledger.refusal import Refusal
from abut.messages import Message, strange_block

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
"""Settings of sampling. A trainer's own take precedence over a client's."""

_ANSWER_FORMS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_FIELDS = frozenset(
    {"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "max_tokens", "stop"}
    | {"max_completion_tokens", "stream", "stream_options", "logprobs", "top_logprobs", "n"}
    | {"return_token_ids", "return_tokens_as_token_ids", "chat_template_kwargs", "rollout_id"}
    | {"logit_bias", "functions", "function_call", "chat_template", "continue_final_message"}
    | {"metadata"}  # the client's own notes, which do not concern the sample
    | {"add_generation_prompt", "echo", "prompt_logprobs", *SAMPLING, *_ANSWER_FORMS}
)
_TOKEN_FIELDS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs"})
# Parameters of `with_tools` and of templates that are not variables.
_RESERVED_VARIABLES = {"tools", "chat_template", "hf_tokenizer", "self"}
_MOST_STOPS = 16
_MOST_STOP_CHARS = 1024
_MOST_TOOLS = 512
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": the turn is being sampled\n\n"


class Chat(ChatRewrites):
    """Chat completions: reads requests, with the rules for what a client may change.

    Args:
        rewrites: the rules by which a client may change an answer of the policy.
        unenforced: "accept" samples freely if a typed answer is asked for.
    """

    def __init__(
        self,
        rewrites: Collection[str] = REWRITES,
        unenforced: Literal["refuse", "accept"] = "refuse",
    ) -> None:
        super().__init__(rewrites)
        self.unenforced = unenforced

    def read(self, body: Mapping[str, Any], like: AgentRequest | None = None) -> AgentRequest:
        """Return the request of a body.

        Args:
            body: its JSON.
            like: the request of an earlier body with equal fields, whose messages are the first
                of this one's. Only the new messages are read.

        Raises:
            Refusal: names the field that is wrong, or that could not be exact.
        """
        if like is not None:
            before = len(like.messages)
            messages = _messages(body, before)
            more = messages[before:]
            return like.with_messages(
                messages, token_ids=like.token_ids or any(map(_has_tokens, more))
            )
        _refuse_inexact(body)
        variables = _object(body, "chat_template_kwargs")
        if taken := sorted(_RESERVED_VARIABLES & variables.keys()):
            raise Refusal(
                f"chat_template_kwargs: {taken[0]} is no variable of the template's",
                param="chat_template_kwargs",
            )
        choice = body.get("tool_choice")
        options = _object(body, "stream_options")
        names = _flag(body, "return_tokens_as_token_ids")
        unmet = _unmet(body, self.unenforced)
        messages = _messages(body)
        return AgentRequest(
            messages=messages,
            tools=_tools(body),
            max_tokens=_max_tokens(body),
            stop=_stop(body),
            calls=choice != "none",
            one_call=body.get("parallel_tool_calls") is False,
            stream=_flag(body, "stream"),
            usage=bool(options.get("include_usage")),
            logprobs=_flag(body, "logprobs"),
            token_ids=_flag(body, "return_token_ids") or names or any(map(_has_tokens, messages)),
            token_names=names,
            template_kwargs=variables,
            sampling={name: body[name] for name in SAMPLING if body.get(name) is not None},
            ignored=sorted(key for key in body if key not in _FIELDS and body[key] is not None),
            unmet=unmet,
            model=_text(body, "model") or "",
            rollout_id=_text(body, "rollout_id"),
            dialect=self,
        )


def _refuse_inexact(body: Mapping[str, Any]) -> None:
    n = body.get("n")
    if n is not None and n != 1:
        raise Refusal(f"n={n!r}: one sample each request\nhint: ask again for another", param="n")
    top = body.get("top_logprobs")
    if top:
        raise Refusal(
            f"top_logprobs={top!r}: only those of the sampled tokens are known\n"
            "hint: logprobs=true, top_logprobs=0",
            param="top_logprobs",
        )
    for name, holds, why in (
        ("logit_bias", not body.get("logit_bias"), "it would change what the policy samples"),
        ("functions", not body.get("functions"), "it is not shown to the policy; use tools"),
        ("chat_template", body.get("chat_template") is None, "the trainer's template is used"),
        ("continue_final_message", not body.get("continue_final_message"), "a turn is sampled"),
        ("add_generation_prompt", body.get("add_generation_prompt") is not False, "a turn begins"),
        ("echo", not body.get("echo"), "the answer is what was sampled"),
        ("prompt_logprobs", body.get("prompt_logprobs") is None, "no token of the prompt has one"),
    ):
        if not holds:
            raise Refusal(f"{name} is not supported: {why}\nhint: leave it out", param=name)


def _unmet(body: Mapping[str, Any], unenforced: str) -> list[str]:
    unmet = []
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, Mapping):
        unmet.append("tool_choice")
    elif choice not in (None, "auto", "none"):
        raise Refusal(
            f"tool_choice={choice!r}: expected 'auto', 'none', 'required' or a function",
            param="tool_choice",
        )
    for name in _ANSWER_FORMS:
        asked = body.get(name)
        if asked is None or (isinstance(asked, Mapping) and asked.get("type") == "text"):
            continue
        if unenforced != "accept":
            raise Refusal(
                f"{name} is not enforced: a sample that is forced into a form is not the policy's "
                "own, and could not be trained\n"
                "hint: Gateway(unenforced='accept') samples freely where it is asked for",
                param=name,
            )
        unmet.append(name)
    return unmet


def _has_tokens(message: Message) -> bool:
    """Return whether a message came back with its tokens."""
    return not _TOKEN_FIELDS.isdisjoint(message)


def _messages(body: Mapping[str, Any], read: int = 0) -> list[Message]:
    """Return the messages of a body, of which the first `read` were checked before."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal("messages must be a list with a message at least", param="messages")
    for place, message in enumerate(messages[read:], read):
        where = f"messages[{place}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise Refusal(
                f"{where} must be an object with a role of {', '.join(ROLES)}", param="messages"
            )
        content = message.get("content")
        if type(content) is not str:
            content = _without_thinking(message)
            if (block := strange_block(content)) is not None:
                raise Refusal(
                    f"{where} has content of the type {block!r}, and abut is text only",
                    param="messages",
                )
            if text_of(content) is None:
                raise Refusal(f"{where}.content must be text or parts of text", param="messages")
        if any(type(value) is not str and is_deep(value) for value in message.values()):
            raise Refusal(f"{where} is nested more than {MOST_DEPTH} deep", param="messages")
        calls = message.get("tool_calls")
        if calls is not None and not (
            isinstance(calls, list)
            and all(
                isinstance(call, dict)
                and isinstance(call.get("function"), dict)
                and isinstance(call["function"].get("name"), str)
                for call in calls
            )
        ):
            raise Refusal(f"{where}.tool_calls must be calls of functions", param="messages")
    return messages


def _without_thinking(message: Message) -> Any:
    """Move blocks of thinking from an answer's content to its reasoning; return the content.

    LiteLLM's adapter for Anthropic's protocol writes such blocks.
    """
    content = message.get("content")
    if message["role"] != "assistant" or not isinstance(content, list):
        return content
    said = [b for b in content if isinstance(b, dict) and b.get("type") == "thinking"]
    texts = [block.get("thinking") for block in said]
    if not said or not all(isinstance(text, str) for text in texts):
        return content
    message["content"] = [block for block in content if block not in said]
    if not message.get("reasoning_content"):
        message["reasoning_content"] = "".join(map(str, texts))
    return message["content"]


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools = body.get("tools")
    if not tools and isinstance(tools, list | None):
        return None
    if not isinstance(tools, list) or not all(map(_is_tool, tools)):
        raise Refusal(
            'tools must be functions: {"type": "function", "function": {"name": …, …}}',
            param="tools",
        )
    if len(tools) > _MOST_TOOLS:
        raise Refusal(f"{len(tools)} tools: at most {_MOST_TOOLS}", param="tools")
    return tools


def _is_tool(tool: Any) -> bool:
    return (
        isinstance(tool, dict)
        and tool.get("type") == "function"
        and isinstance(tool.get("function"), dict)
        and isinstance(tool["function"].get("name"), str)
        and bool(tool["function"]["name"])
    )


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    given = []
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Refusal(f"{name}={value!r}: must be 1 or more", param=name)
        given.append(value)
    return min(given, default=None)


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if (
        not isinstance(stops, list)
        or len(stops) > _MOST_STOPS
        or not all(isinstance(one, str) and 0 < len(one) <= _MOST_STOP_CHARS for one in stops)
    ):
        raise Refusal(
            f"stop must be a text or at most {_MOST_STOPS} texts, of 1 to {_MOST_STOP_CHARS} "
            "characters",
            param="stop",
        )
    return tuple(dict.fromkeys(stops))


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refusal(f"{name}={value!r}: must be true or false", param=name)
    return bool(value)


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise Refusal(f"{name} must be an object", param=name)
    return value or {}


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal(f"{name} must be a text", param=name)
    return value


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
    """Yield an answer as server-sent events, without the last one, `DONE`."""
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


def refusal_body(refusal: Refusal) -> dict[str, Any]:
    """Return the JSON of a refusal, as OpenAI writes errors."""
    kind = "not_found_error" if refusal.status == 404 else "invalid_request_error"
    error = {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}
    return {"error": error}


def event(value: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


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
