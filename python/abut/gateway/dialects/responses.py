"""OpenAI Responses: bodies to requests.

Invariant: a `previous_response_id` stands for the messages of that response's request and for its
answer; the ledger has both.
"""

import json
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

from abut._native import Tokenizer
from abut.gateway.dialects.chat_answers import refusal_body
from abut.gateway.dialects.dialect import (
    HttpDialect,
    Like,
    check_form,
    flag,
    list_at,
    most_tokens,
    named_event,
    object_at,
    request_like,
    sampling_in,
    text_at,
)
from abut.gateway.dialects.history_reader import read_history, settings_of
from abut.gateway.dialects.image_fields import ImageField
from abut.gateway.dialects.responses_answers import events, response_body
from abut.gateway.dialects.responses_items import (
    THINKING_AS_TEXT,
    BodyTools,
    ItemReader,
    image_fields,
)
from abut.gateway.dialects.responses_tools import (
    ResponsesTools,
    add_tools,
    is_custom_call,
    unwrapped,
)
from abut.gateway.ledger.agent_call import AgentRequest, PolicyAnswer
from abut.gateway.ledger.comparable import MOST_DEPTH, calls_of, comparable_call, is_deep
from abut.gateway.ledger.entry import BranchEntry, Calls, without_space
from abut.gateway.ledger.matching import key_of_calls
from abut.gateway.ledger.refusal import CONVERSATION_FULL, Refusal, short
from abut.messages import Message

ResponsesRewrite: TypeAlias = Literal["empty_turn_left_out", "thinking_as_text"]
"""A change that a client of Responses is known to make to an answer of the policy:

- empty_turn_left_out: as in `ChatRewrite`
- thinking_as_text: writes the thinking as text before the answer (pydantic-ai)
"""

_SAMPLING = {name: name for name in ("temperature", "top_p")}
_READ = frozenset(
    {"model", "input", "instructions", "previous_response_id", "tools", "tool_choice", "stream"}
    | {"parallel_tool_calls", "max_output_tokens", "top_logprobs", "text", "rollout_id"}
    | {"background", "conversation", "prompt", *_SAMPLING}
    # Fields that do not affect the sample: the client's notes, and parts that an answer has anyway.
    | {"metadata", "client_metadata", "store", "include"}
)
_REFUSED = {
    "background": "the gateway sends each answer as soon as it is sampled",
    "conversation": "use previous_response_id, or send all items with each request",
    "prompt": "the gateway keeps no prompts; send the text of the prompt",
}
_ECHOED = ("metadata", "parallel_tool_calls", "previous_response_id", "temperature", "top_p")
_CHOICES = ("auto", "none", "required")
_COMPACTION = "compaction"


class Responses(HttpDialect):
    """OpenAI Responses."""

    list_key = "input"
    paths = ("/v1/responses",)
    kept_path = "/v1/responses/{answer:resp_[^/]+}"
    known_rewrites = get_args(ResponsesRewrite)
    id_prefix = "resp_"
    places_system = True

    def read(
        self,
        body: Mapping[str, Any],
        like: Like | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AgentRequest:
        """Return the request of a body, see `HttpDialect.read`."""
        for name, why in _REFUSED.items():
            if body.get(name):
                raise Refusal(f"{name} is not supported: {why}", param=name)
        if body.get("top_logprobs"):
            raise Refusal(
                "top_logprobs: the gateway knows only the logprobs of the sampled tokens\n"
                "hint: remove top_logprobs from the request",
                param="top_logprobs",
            )
        given = list_at(body, "tools")
        settings = settings_of(like)
        if settings is None or settings.given is not given:
            settings = BodyTools(ResponsesTools([], {}, []), given)
            add_tools(settings.tools, given)
        request = request_like(like, lambda: self._fields(body, settings.tools))
        head = _instructions(body)
        new = ItemReader(settings, THINKING_AS_TEXT in self.rewrites)
        reader = read_history(_given(body), like, new)
        if not reader.messages and request.follows is None:
            raise Refusal("input must be a string or a list with at least one item", param="input")
        ignored = [key for key in body if key not in _READ and body[key] is not None]
        return request.with_messages(
            head + reader.messages,
            head=len(head),
            names=reader.tools.names,
            ignored=sorted([*ignored, *reader.tools.left_out]),
            origin=_origin(headers or {}),
            said=reader.digest(head),
            reading=reader.reading,
        )

    def _fields(self, body: Mapping[str, Any], tools: ResponsesTools) -> AgentRequest:
        """Return the request of a body, without its messages and the tools that those name."""
        choice = _choice(body)
        unmet = ["tool_choice"] if choice == "required" else []
        kind = object_at(object_at(body, "text"), "format").get("type", "text")
        if kind != "text":
            check_form("text.format", self.unenforced)
            unmet.append("text.format")
        follows = text_at(body, "previous_response_id")
        if follows is not None and self.rollout_of_answer(follows) is None:
            raise Refusal(
                f"previous_response_id {follows[:200]!r} is not the id of an answer of this "
                "gateway",
                param="previous_response_id",
            )
        return AgentRequest(
            messages=[],
            tools=tools.shown or None,
            max_tokens=most_tokens(body, "max_output_tokens"),
            calls=choice != "none",
            one_call=body.get("parallel_tool_calls") is False,
            stream=flag(body, "stream"),
            sampling=sampling_in(body, _SAMPLING),
            unmet=unmet,
            model=text_at(body, "model") or "",
            rollout_id=text_at(body, "rollout_id"),
            follows=follows,
            echo=_echoed(body),
            dialect=self,
        )

    def image_fields(self, element: Mapping[str, Any], place: int) -> Iterator[ImageField]:
        """Yield the images of an item, see `HttpDialect.image_fields`."""
        return image_fields(element, f"input[{place}]")

    def rewrite_of(
        self, text: str, calls: Calls, entry: BranchEntry, *, same_calls: bool
    ) -> str | None:
        """Return `""` for an answer whose custom tool calls differ only in spelling."""
        if same_calls or text != entry.text or len(calls) != len(entry.calls):
            return None
        own = zip(calls, entry.calls, calls_of(entry.message), strict=True)
        same = (comparable_call(c) == key or is_custom_call(c, mine) for c, key, mine in own)
        return "" if all(same) else None

    def keys_returned(self, entry: BranchEntry) -> Iterator[Hashable]:
        """Yield a key of an answer that does not depend on the arguments of custom tools."""
        yield from self.keys_read(entry.text, key_of_calls(calls_of(entry.message)))

    def keys_read(self, text: str, calls: tuple[Any, ...]) -> Iterator[Hashable]:
        """Yield the same kind of key for a message that may be an answer."""
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
    """Return why Codex made a request, if it says so."""
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
            f"tool_choice={short(choice)}: expected one of {', '.join(_CHOICES)}, or an object "
            "that names a tool",
            param="tool_choice",
        )
    return str(choice)


def _echoed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that an answer repeats, all of which can be written as JSON."""
    echo = {name: body[name] for name in _ECHOED if body.get(name) is not None}
    for name, value in echo.items():
        if is_deep(value):
            raise Refusal(f"{name} is nested more than {MOST_DEPTH} deep", param=name)
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:  # Python reads NaN and Infinity, and other clients could not
            raise Refusal(f"{name} has a number that JSON cannot express", param=name) from None
    return echo


def _instructions(body: Mapping[str, Any]) -> list[Message]:
    text = text_at(body, "instructions")
    return [{"role": "system", "content": text}] if text else []


def _given(body: Mapping[str, Any]) -> list[Any]:
    given = body.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list | None):
        raise Refusal("input must be a string or a list of items", param="input")
    return given or []
