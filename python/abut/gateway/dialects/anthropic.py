"""Anthropic Messages: bodies to requests, with the spellings of one history that its clients have.

Invariant: parsing a body keeps everything that the policy should see. Blocks become chat messages:
tool results in the order of their calls, then the texts that came with them. Parts that change from
request to request within one conversation are left out: cache marks, and the billing line that
Claude Code puts before its system prompt.
"""

import json
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from abut._native import Tokenizer
from abut.gateway.dialects.anthropic_answers import (
    THREADS_UNSUPPORTED,
    error_body,
    events,
    message_body,
)
from abut.gateway.dialects.claude_code import reads_as
from abut.gateway.dialects.dialect import (
    HttpDialect,
    Like,
    blocks_in,
    check_form,
    check_tools,
    content_of,
    flag,
    list_at,
    most_tokens,
    named_event,
    object_at,
    request_like,
    sampling_in,
    stops,
    text_at,
)
from abut.gateway.dialects.history_reader import HistoryReader, read_history, settings_of
from abut.gateway.dialects.image_fields import (
    ImageField,
    base64_at,
    check_media_type,
    not_fetched,
    unread,
)
from abut.gateway.dialects.returned_turn import ReturnedTurn
from abut.gateway.ledger.agent_call import AgentRequest, PolicyAnswer
from abut.gateway.ledger.comparable import MOST_DEPTH, calls_of, is_deep
from abut.gateway.ledger.entry import BranchEntry, Calls, ids_of, without_space
from abut.gateway.ledger.matching import key_of_calls
from abut.gateway.ledger.refusal import Refusal, short
from abut.images import Image
from abut.messages import Message

AnthropicRewrite: TypeAlias = Literal["empty_turn_left_out", "arguments_read"]
"""A change that a client of Messages is known to make to an answer of the policy:

- empty_turn_left_out: as in `ChatRewrite`
- arguments_read: writes the arguments of a call as it has read them (Claude Code)
"""
ARGUMENTS_READ = "arguments_read"

_SAMPLING = {name: name for name in ("temperature", "top_p", "top_k")}
_READ = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences"}
    | {"stream", "output_config", "output_format", "rollout_id", *_SAMPLING}
    | {"metadata"}  # the client's own notes, which do not concern the sample
)
_REFUSED = {
    "container": "the gateway runs no code",
    "mcp_servers": "the gateway calls no MCP servers",
    "compaction": "the client must keep its own history",
}
_BILLING = "x-anthropic-billing-header:"
_SUBAGENT = "cc_is_subagent=true"
_SUBAGENT_HEADER = "x-claude-code-agent-id"
_CHOICES = {"auto": True, "any": True, "tool": True, "none": False}


class Anthropic(HttpDialect):
    """Anthropic Messages."""

    paths = ("/v1/messages",)
    count_paths = ("/v1/messages/count_tokens",)
    count_key = "input_tokens"
    known_rewrites = get_args(AnthropicRewrite)
    id_prefix = "msg_"
    places_system = True

    def read(
        self,
        body: Mapping[str, Any],
        like: Like | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AgentRequest:
        """Return the request of a body, see `HttpDialect.read`."""
        _refuse(body)
        given = list_at(body, "tools")
        tools = settings_of(like)
        if tools is None or tools.given is not given:
            tools = _tools(given)
        request = request_like(like, lambda: self._fields(body, tools))
        billing, system = _system(body)
        is_subagent = _SUBAGENT in billing or _SUBAGENT_HEADER in (headers or {})
        reader = read_history(_given(body), like, _MessageReader(tools))
        return request.with_messages(
            system + reader.messages,
            origin="subagent" if is_subagent else None,
            said=reader.digest(system),
            reading=reader.reading,
        )

    def _fields(self, body: Mapping[str, Any], tools: "_Tools") -> AgentRequest:
        """Return the request of a body without its messages."""
        choice = object_at(body, "tool_choice")
        kind = choice.get("type", "auto")
        if not isinstance(kind, str) or kind not in _CHOICES:
            raise Refusal(
                f"tool_choice.type={short(kind)}: expected one of {', '.join(_CHOICES)}",
                param="tool_choice",
            )
        unmet = ["tool_choice"] if kind in ("any", "tool") else []
        config = object_at(body, "output_config")
        if body.get("output_format") or config.get("format"):
            check_form("output_config.format", self.unenforced)
            unmet.append("output_config.format")
        ignored = [key for key in body if key not in _READ and body[key] is not None]
        return AgentRequest(
            messages=[],
            tools=tools.shown or None,
            max_tokens=most_tokens(body, "max_tokens"),
            stop=stops(body, "stop_sequences"),
            calls=_CHOICES[kind],
            one_call=choice.get("disable_parallel_tool_use") is True,
            stream=flag(body, "stream"),
            sampling=sampling_in(body, _SAMPLING),
            ignored=sorted([*ignored, *tools.left_out]),
            unmet=unmet,
            model=text_at(body, "model") or "",
            rollout_id=text_at(body, "rollout_id"),
            dialect=self,
        )

    def image_fields(self, element: Mapping[str, Any], place: int) -> Iterator[ImageField]:
        """Yield the blocks of the type `image`, see `HttpDialect.image_fields`."""
        role, where = str(element.get("role")), f"messages[{place}]"
        for number, block in blocks_in(element, "content"):
            path = f"{where}.content[{number}]"
            if block.get("type") == "tool_result":
                for inner, shown in blocks_in(block, "content"):
                    yield from _image_field(shown, f"{path}.content[{inner}]", "tool")
            else:
                yield from _image_field(block, path, role)

    def rewrite_of(
        self, text: str, calls: Calls, entry: BranchEntry, *, same_calls: bool
    ) -> str | None:
        """Return the rule by which a changed message is this answer; None if it is not."""
        if same_calls or ARGUMENTS_READ not in self.rewrites or text != entry.text:
            return None
        if not calls or ids_of(calls) != entry.call_ids:
            return None
        return ARGUMENTS_READ if reads_as(calls_of(entry.message), calls) else None

    def keys_returned(self, entry: BranchEntry) -> Iterator[Hashable]:
        """Yield a key of an answer with calls; it does not depend on their arguments."""
        yield from self.keys_read(entry.text, key_of_calls(calls_of(entry.message)))

    def keys_read(self, text: str, calls: tuple[Any, ...]) -> Iterator[Hashable]:
        """Yield the same kind of key for a message that may be an answer."""
        if calls and ARGUMENTS_READ in self.rewrites:
            yield "names", without_space(text), tuple(name for name, _ in calls)

    def answer(
        self, answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """Return an answer as a `Message`."""
        return message_body(answer, model)

    def events(
        self, answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
    ) -> Iterator[bytes]:
        """Yield an answer as server-sent events."""
        return map(named_event, events(answer, model))

    def refused(self, refusal: Refusal) -> dict[str, Any]:
        """Return the JSON of a refusal, as Anthropic writes errors."""
        return error_body(refusal)

    def refused_event(self, refusal: Refusal) -> bytes:
        """Return the event that ends a stream whose turn was refused."""
        return named_event(error_body(refusal))


def _image_field(block: dict[str, Any], path: str, role: str) -> Iterator[ImageField]:
    """Yield the source of a block, if it is an image."""
    if block.get("type") == "image":
        path, source = f"{path}.source", block.get("source")
        if not isinstance(source, dict) or source.get("type") != "base64":
            raise not_fetched(path, source)
        check_media_type(source.get("media_type"), f"{path}.media_type")
        yield ImageField(path, role, base64_at(source, "data", path), block, "source")


def _refuse(body: Mapping[str, Any]) -> None:
    if object_at(body, "thread"):
        raise Refusal(
            "the gateway does not keep threads\nhint: send all messages with each request",
            param="thread",
            code=THREADS_UNSUPPORTED,
        )
    for name, why in _REFUSED.items():
        if body.get(name):
            raise Refusal(
                f"{name} is not supported: {why}\nhint: remove it from the request", param=name
            )


class _Tools(NamedTuple):
    """The tools of a body."""

    shown: list[dict[str, Any]]
    """The tools that the prompt has."""
    deferred: dict[str, str]
    """By name, the definitions that the prompt has only where a result refers to them."""
    left_out: list[str]
    """The tools that Anthropic's servers run."""
    given: list[Any]
    """As the body has them."""


def _tools(given: list[Any]) -> _Tools:
    tools = _Tools([], {}, [], given)
    check_tools(given)
    for tool in given:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
            raise Refusal("tools must be objects with a name and an input_schema", param="tools")
        if (kind := tool.get("type")) not in (None, "custom"):
            tools.left_out.append(f"tools[{kind}]")
            continue
        function = {"name": tool["name"]}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        function["parameters"] = tool.get("input_schema") or {"type": "object", "properties": {}}
        if tool.get("defer_loading"):
            tools.deferred[tool["name"]] = json.dumps(function, ensure_ascii=False)
        else:
            tools.shown.append({"type": "function", "function": function})
    return tools


def _system(body: Mapping[str, Any]) -> tuple[str, list[Message]]:
    """Return the billing line, and the system message if there is one."""
    texts = [text for text in _parts(body.get("system"), "system") if isinstance(text, str)]
    billing = "".join(text for text in texts if text.startswith(_BILLING))
    shown = [text for text in texts if not text.startswith(_BILLING)]
    return billing, [{"role": "system", "content": content_of(shown)}] if shown else []


def _given(body: Mapping[str, Any]) -> list[Any]:
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise Refusal("messages must be a list with at least one message", param="messages")
    return given


class _MessageReader(HistoryReader):
    """Reads the messages of bodies with the same tools."""

    def __init__(self, tools: _Tools) -> None:
        super().__init__(tools)
        self._deferred = tools.deferred
        self._calls: dict[str, int] = {}  # ids in the order of the calls

    def add(self, element: Any, place: int) -> None:
        """Add the messages of one message."""
        where = f"messages[{place}]"
        role = element.get("role") if isinstance(element, dict) else None
        if role not in ("user", "assistant", "system"):
            raise Refusal(
                f"{where} must be an object whose role is user, assistant or system",
                param="messages",
            )
        content = element.get("content")
        if isinstance(content, str):
            self.messages.append({"role": role, "content": content})
        elif not isinstance(content, list) or not all(isinstance(b, dict) for b in content):
            raise Refusal(f"{where}.content must be a string or a list of blocks", param="messages")
        elif role == "assistant":
            self.messages.append(answer := _answer(content, where))
            for call in answer.get("tool_calls", ()):
                self._calls[call["id"]] = len(self._calls)
        else:
            self.messages += _said(role, content, where, self._calls, self._deferred)

    def leaves_only_messages(self, element: Any) -> bool:
        """Return whether the message is not an answer (the calls of answers are counted)."""
        return bool(element["role"] != "assistant")


def _answer(blocks: list[dict[str, Any]], where: str) -> Message:
    """Return the message of an answer."""
    turn = ReturnedTurn()
    for block in blocks:
        kind = block.get("type")
        if kind == "redacted_thinking":
            continue  # nothing that a policy sees
        if kind == "text":
            turn.add_text(_text(block, "text", where))
        elif kind == "thinking":
            turn.add_reasoning(_text(block, "thinking", where))
            turn.add_handle(_text(block, "signature", where))
        elif kind == "tool_use":
            turn.add_call(_call(block, where))
        else:
            raise unread(where, kind)
    return turn.end()


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    id_, name, arguments = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(id_, str) or not isinstance(name, str):
        raise Refusal(f"{where} has a tool_use without an id or a name", param="messages")
    if is_deep(arguments):
        raise Refusal(f"{where} is nested more than {MOST_DEPTH} deep", param="messages")
    # Not always an object, because a client keeps arguments that it could not parse.
    text = arguments if isinstance(arguments, dict | str) else json.dumps(arguments)
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}


def _said(
    role: str,
    blocks: list[dict[str, Any]],
    where: str,
    calls: Mapping[str, int],
    deferred: Mapping[str, str],
) -> list[Message]:
    """Return the messages that a client's message becomes.

    Tool results come first, in the order of their calls, because a template does not show ids and
    Claude Code sends results as its tools finish. One message with all other blocks follows, so a
    text that a client appends later is a message of its own.
    """
    results = [block for block in blocks if block.get("type") == "tool_result"]
    results.sort(key=lambda block: calls.get(str(block.get("tool_use_id")), len(calls)))
    messages: list[Message] = []
    for block in results:
        said = _parts(block.get("content"), where, deferred)
        id_ = block.get("tool_use_id")
        if not isinstance(id_, str):
            raise Refusal(f"{where} has a tool_result without a tool_use_id", param="messages")
        messages.append({"role": "tool", "tool_call_id": id_, "content": content_of(said)})
    others = [block for block in blocks if block.get("type") != "tool_result"]
    if others or not results:
        messages.append({"role": role, "content": content_of(_parts(others, where))})
    return messages


def _parts(
    content: Any, where: str, deferred: Mapping[str, str] | None = None
) -> list[str | Image]:
    """Return the texts and images of a content.

    Args:
        content: a string, or blocks.
        where: the path of the content in the body, for errors.
        deferred: the definitions that a `tool_reference` can show; None: there are none.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise Refusal(
            f"{where} must be a string or a list of text blocks", param=where.partition("[")[0]
        )
    parts: list[str | Image] = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            parts.append(_text(block, "text", where))
        elif kind == "image" and isinstance(block.get("source"), Image):
            parts.append(block["source"])
        elif kind == "tool_reference" and deferred is not None:
            name = _text(block, "tool_name", where)
            parts.append(deferred.get(name) or json.dumps({"name": name}, ensure_ascii=False))
        else:
            raise unread(where, kind)
    return parts


def _text(block: Mapping[str, Any], name: str, where: str) -> str:
    text = block.get(name) or ""
    if not isinstance(text, str):
        raise Refusal(f"{where} has a {name} that is not a string", param=where.partition("[")[0])
    return text
