"""OpenAI Responses: bodies to requests, with the spellings of one history that its clients have.

Invariant: the items between two inputs are one turn, in the order in which an answer has them. Ids,
states and labels of items say nothing. A `previous_response_id` stands for the messages of that
response's request and its answer, which the ledger has.
"""

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

from abut._native import Tokenizer
from abut.gateway.dialects.chat_answers import refusal_body
from abut.gateway.dialects.dialect import (
    HttpDialect,
    check_form,
    content_of,
    flag,
    list_at,
    most_tokens,
    named_event,
    object_at,
    sampling_in,
    text_at,
)
from abut.gateway.dialects.responses_answers import events, response_body
from abut.gateway.dialects.responses_tools import (
    ResponsesTools,
    add_tools,
    call_of_item,
    is_custom_call,
    unwrapped,
)
from abut.gateway.dialects.returned_turn import ReturnedTurn
from abut.gateway.ledger.agent_call import AgentRequest, PolicyAnswer
from abut.gateway.ledger.comparable import MOST_DEPTH, calls_of, comparable_call, is_deep
from abut.gateway.ledger.entry import REREAD, RESPELLED, BranchEntry, Calls, without_space
from abut.gateway.ledger.matching import key_of_calls
from abut.gateway.ledger.refusal import CONVERSATION_FULL, Refusal, short
from abut.messages import Message

ResponsesRewrite: TypeAlias = Literal["empty_turn_left_out", "thinking_as_text"]
"""A change that a client of Responses is known to make to an answer of the policy:

- empty_turn_left_out: as in `ChatRewrite`
- thinking_as_text: writes the thinking as a text before the answer (pydantic-ai)
"""
THINKING_AS_TEXT = "thinking_as_text"

_SAMPLING = {name: name for name in ("temperature", "top_p")}
_READ = frozenset(
    {"model", "input", "instructions", "previous_response_id", "tools", "tool_choice", "stream"}
    | {"parallel_tool_calls", "max_output_tokens", "top_logprobs", "text", "rollout_id"}
    | {"background", "conversation", "prompt", *_SAMPLING}
    # Nothing that concerns the sample: the client's notes, and what an answer has anyway.
    | {"metadata", "client_metadata", "store", "include"}
)
_REFUSED = {
    "background": "an answer is sent when it is sampled",
    "conversation": "use previous_response_id, or send all items",
    "prompt": "no prompt is kept here; send its text",
}
_ECHOED = ("metadata", "parallel_tool_calls", "previous_response_id", "temperature", "top_p")
_CHOICES = ("auto", "none", "required")
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_CALLS = ("function_call", "custom_tool_call", "tool_search_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
# The field of a message for each list of texts of a reasoning item.
_REASONING = {"summary": "reasoning_content", "content": "reasoning"}
_THINKING = re.compile(r"<think>\n(.*)\n</think>", re.DOTALL)
_COMPACTION = "compaction"


class Responses(HttpDialect):
    """OpenAI Responses."""

    paths = ("/v1/responses",)
    kept_path = "/v1/responses/{answer:resp_[^/]+}"
    known_rewrites = get_args(ResponsesRewrite)
    id_prefix = "resp_"
    places_system = True

    def read(
        self,
        body: Mapping[str, Any],
        like: AgentRequest | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AgentRequest:
        """Return the request of a body, see `HttpDialect.read`."""
        for name, why in _REFUSED.items():
            if body.get(name):
                raise Refusal(f"{name} is not supported: {why}", param=name)
        if body.get("top_logprobs"):
            raise Refusal(
                "top_logprobs: only those of the sampled tokens are known\nhint: leave it out",
                param="top_logprobs",
            )
        tools = ResponsesTools([], {}, [])
        add_tools(tools, list_at(body, "tools"))
        head = _instructions(body)
        choice = _choice(body)
        unmet = ["tool_choice"] if choice == "required" else []
        kind = object_at(object_at(body, "text"), "format").get("type", "text")
        if kind != "text":
            check_form("text.format", self.unenforced)
            unmet.append("text.format")
        ignored = [key for key in body if key not in _READ and body[key] is not None]
        messages = head + _messages(body, tools, THINKING_AS_TEXT in self.rewrites)
        follows = text_at(body, "previous_response_id")
        if follows is not None and self.rollout_of_answer(follows) is None:
            raise Refusal(
                f"previous_response_id {follows[:200]!r} is not an answer of this gateway",
                param="previous_response_id",
            )
        if not messages[len(head) :] and follows is None:
            raise Refusal("input must be a text, or a list with an item at least", param="input")
        return AgentRequest(
            messages=messages,
            tools=tools.shown or None,
            max_tokens=most_tokens(body, "max_output_tokens"),
            calls=choice != "none",
            one_call=body.get("parallel_tool_calls") is False,
            stream=flag(body, "stream"),
            sampling=sampling_in(body, _SAMPLING),
            ignored=sorted([*ignored, *tools.left_out]),
            unmet=unmet,
            model=text_at(body, "model") or "",
            rollout_id=text_at(body, "rollout_id"),
            origin=_origin(headers or {}),
            follows=follows,
            head=len(head),
            names=tools.names,
            echo=_echoed(body),
            dialect=self,
        )

    def rewrite_of(
        self, text: str, calls: Calls, entry: BranchEntry, *, same_calls: bool
    ) -> str | None:
        """Return `""` for an answer whose calls of custom tools came back as their items are."""
        if same_calls or text != entry.text or len(calls) != len(entry.calls):
            return None
        own = zip(calls, entry.calls, calls_of(entry.message), strict=True)
        same = (comparable_call(c) == key or is_custom_call(c, mine) for c, key, mine in own)
        return "" if all(same) else None

    def keys_returned(self, entry: BranchEntry) -> Iterator[Hashable]:
        """Yield the key of an answer that does not change with a custom tool's arguments."""
        yield from self.keys_read(entry.text, key_of_calls(calls_of(entry.message)))

    def keys_read(self, text: str, calls: tuple[Any, ...]) -> Iterator[Hashable]:
        """Yield that key of a message that may be an answer."""
        if calls:
            yield "unwrapped", without_space(text), tuple(map(unwrapped, calls))

    def rollout_of(self, body: Mapping[str, Any]) -> str | None:
        """Return the rollout that `previous_response_id` names, if it does."""
        id_ = body.get("previous_response_id")
        return self.rollout_of_answer(id_) if isinstance(id_, str) else None

    def answer(
        self, answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """Return an answer as a `Response`."""
        return response_body(answer, request, model)

    def events(
        self, answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
    ) -> Iterator[bytes]:
        """Yield an answer as server-sent events."""
        return map(named_event, events(answer, request, model))

    def refused(self, refusal: Refusal) -> dict[str, Any]:
        """Return the JSON of a refusal, as OpenAI writes errors."""
        return refusal_body(refusal, as_full=(CONVERSATION_FULL,))

    def refused_event(self, refusal: Refusal) -> bytes:
        """Return the event that ends a stream whose turn was refused."""
        error = self.refused(refusal)["error"]
        return named_event({**error, "type": "error", "sequence_number": 0})


def _origin(headers: Mapping[str, str]) -> Any:
    """Return what Codex says of a request."""
    if "x-openai-subagent" in headers:
        return "subagent"
    try:
        said = json.loads(headers.get("x-codex-turn-metadata") or "null")
    except (ValueError, RecursionError):
        return None
    kind = said.get("request_kind") if isinstance(said, dict) else None
    return _COMPACTION if kind == _COMPACTION else None


def _choice(body: Mapping[str, Any]) -> str:
    choice = body.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        choice = choice.get("mode") or "required"
    if choice not in _CHOICES:
        raise Refusal(
            f"tool_choice={short(choice)}: expected one of {', '.join(_CHOICES)}, or a tool",
            param="tool_choice",
        )
    return str(choice)


def _echoed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that an answer repeats, all of which can be written as JSON."""
    echo = {name: body[name] for name in _ECHOED if body.get(name) is not None}
    for name, value in echo.items():
        if is_deep(value):
            raise Refusal(f"{name} is nested more than {MOST_DEPTH} deep", param=name)
    return echo


def _instructions(body: Mapping[str, Any]) -> list[Message]:
    text = text_at(body, "instructions")
    return [{"role": "system", "content": text}] if text else []


def _messages(
    body: Mapping[str, Any], tools: ResponsesTools, thinking_as_text: bool
) -> list[Message]:
    """Return the messages of the items of a body.

    Args:
        body: has them as `input`.
        tools: get what the results of searches have found.
        thinking_as_text: whether an answer whose thinking is a text can be the policy's.
    """
    given = body.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list | None):
        raise Refusal("input must be a text or a list of items", param="input")
    messages: list[Message] = []
    turns: list[_ItemTurn] = []
    turn: _ItemTurn | None = None
    for place, item in enumerate(given or ()):
        where = f"input[{place}]"
        if not isinstance(item, dict):
            raise Refusal(f"{where} must be an object", param="input")
        kind, role = item.get("type") or "message", item.get("role")
        if kind == "message" and role not in _ROLES:
            raise Refusal(f"{where} must have a role of {', '.join(_ROLES)}", param="input")
        if kind in ("reasoning", *_CALLS) or (kind, role) == ("message", "assistant"):
            if turn is None:
                turn = _ItemTurn(thinking_as_text)
                turns.append(turn)
                messages.append(turn.message)
            turn.add(kind, item, where, tools)
            continue
        turn = None
        messages.append(_said(kind, item, where, tools))
    for turn in turns:
        turn.end()
    return messages


class _ItemTurn:
    """The items between two inputs.

    A text like `<think>…</think>` may be the thinking of an answer, as pydantic-ai writes it, or
    its text. Which of the two it is depends on the answer, so the turn is read in both ways.

    Args:
        thinking_as_text: whether an answer whose thinking is a text can be the policy's.
    """

    def __init__(self, thinking_as_text: bool) -> None:
        self._thinking_as_text = thinking_as_text
        self._turn = ReturnedTurn()
        self._reread: ReturnedTurn | None = None

    @property
    def message(self) -> Message:
        """The message of an answer; `end` completes it."""
        return self._turn.message

    def add(self, kind: str, item: Mapping[str, Any], where: str, tools: ResponsesTools) -> None:
        """Add the next item."""
        readings = [self._turn] if self._reread is None else [self._turn, self._reread]
        if kind == "reasoning":
            texts = {name: "".join(_texts(item.get(name), where)) for name in _REASONING}
            handle = text_at(item, "encrypted_content") or ""
            for turn in readings:
                for name, field in _REASONING.items():
                    turn.add_reasoning(texts[name], field)
                turn.add_handle(handle)
        elif kind in _CALLS:
            call = call_of_item(item, where, tools.names)
            for turn in readings:
                turn.add_call(call)
        else:
            self._add_message(item.get("content"), where, readings)

    def _add_message(self, content: Any, where: str, readings: list[ReturnedTurn]) -> None:
        parts = content if isinstance(content, list) else []
        if refused := [part for part in parts if _is_refusal(part)]:
            if is_deep(refused):
                raise Refusal(f"{where} is nested more than {MOST_DEPTH} deep", param="input")
            for turn in readings:
                turn.message["refusal"] = refused  # the policy's answers have none
        said = [part for part in parts if not _is_refusal(part)]
        text = "".join(_texts(said if parts else content, where))
        thinking = _THINKING.fullmatch(text) if self._thinking_as_text else None
        if thinking is not None and readings[-1].in_reasoning:
            self._reread = self._reread or self._turn.copy()
            self._reread.add_reasoning(thinking[1])
        elif self._reread is not None:
            self._reread.add_text(text)
        self._turn.add_text(text)

    def end(self) -> None:
        """Complete the message, with its other reading if there is one."""
        self._turn.end()
        if self._reread is not None:
            self.message[REREAD] = {**self._reread.end(), RESPELLED: THINKING_AS_TEXT}


def _is_refusal(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "refusal"


def _said(kind: str, item: Mapping[str, Any], where: str, tools: ResponsesTools) -> Message:
    """Return the message of an input."""
    if kind == "message":
        return {"role": item["role"], "content": content_of(_texts(item.get("content"), where))}
    if kind != "tool_search_output" and kind not in _OUTPUTS:
        raise Refusal(
            f"{where} has the type {short(kind)}, and abut takes messages, reasoning, calls of "
            "functions and their outputs",
            param="input",
        )
    id_ = item.get("call_id")
    if not isinstance(id_, str):
        raise Refusal(f"{where} is an output without a call_id", param="input")
    if kind == "tool_search_output":
        # A list of its own: all searches together may find more tools than a prompt may show.
        found_here = ResponsesTools([], tools.names, tools.left_out)
        add_tools(found_here, item.get("tools") or [])
        found = [tool["function"] for tool in found_here.shown]
        return {
            "role": "tool",
            "tool_call_id": id_,
            "content": json.dumps(found, ensure_ascii=False),
        }
    return {
        "role": "tool",
        "tool_call_id": id_,
        "content": content_of(_texts(item.get("output"), where)),
    }


def _texts(content: Any, where: str) -> list[str]:
    """Return the texts of a content."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise Refusal(f"{where} must have a text or parts of text", param="input")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXTS or not isinstance(part.get("text"), str):
            raise Refusal(
                f"{where} has a part of the type {short(kind)}, and abut is text only",
                param="input",
            )
        texts.append(part["text"])
    return texts
