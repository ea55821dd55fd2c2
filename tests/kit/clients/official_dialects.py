"""How each protocol asks, and what its official SDK makes of the answer."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from tests.kit.clients.official_types import accepted
from tests.kit.stage.agents import LOOKUP, a_call, user

SCHEMA: Any = LOOKUP["function"]["parameters"]  # type: ignore[index]


class Said(NamedTuple):
    """An answer, in no protocol."""

    thinking: str = ""
    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    end: Any = "stop"
    """`stop`, `calls`, `length` or `stop string`; or how a protocol says it."""


class AnswerKind(NamedTuple):
    """What the policy writes, and what a client is told.

    Attributes:
        written: by the policy.
        said: to the client.
        most: the limit of tokens that the client sets; none: 500.
        stop: the string that ends the turn.
    """

    written: str
    said: Said
    most: int = 500
    stop: str | None = None


_CUT = '<tool_call>\n{"name": "lookup", "arguments": {"a": "one"'
_NOT_JSON = '<tool_call>\n{"name": "lookup", "arguments": {"a": }}\n</tool_call>'
KINDS: dict[str, AnswerKind] = {
    "text": AnswerKind("Yes.", Said(text="Yes.")),
    "thinking": AnswerKind("<think>\nhm\n</think>\n\nYes.", Said("hm", "Yes.")),
    "thinking alone": AnswerKind("<think>\nhm\n</think>\n\n", Said("hm")),
    "nothing": AnswerKind("", Said()),
    "calls": AnswerKind(
        f"<think>\nhm\n</think>\n\nSo.\n{a_call(a='one')}\n{a_call(a='café')}",
        Said("hm", "So.", (("lookup", {"a": "one"}), ("lookup", {"a": "café"})), "calls"),
    ),
    "a call of no tool": AnswerKind(
        a_call("web_search", query="x"), Said(calls=(("web_search", {"query": "x"}),), end="calls")
    ),
    "a call without arguments": AnswerKind(
        a_call("lookup"), Said(calls=(("lookup", {}),), end="calls")
    ),
    "a call that is not JSON": AnswerKind(_NOT_JSON, Said(text=_NOT_JSON)),
    "cut": AnswerKind("Yes.", Said(text="Y", end="length"), most=1),
    "cut in its thinking": AnswerKind("<think>\nhm", Said("h", end="length"), most=3),
    "cut in a call": AnswerKind(_CUT, Said(text='<tool_call>\n{"', end="length"), most=4),
    "a stop string": AnswerKind("Yes. No.", Said(text="Yes", end="stop string"), stop=". No"),
    "a stop string at once": AnswerKind("Yes.", Said(end="stop string"), stop="Yes."),
}
"""The answers of each protocol."""


class OfficialDialect(ABC):
    """One protocol, with its official SDK.

    Attributes:
        kinds: of the answers that it can have.
        ends: how it says why a turn ended.
        besides: the fields that its types do not have, though clients of other servers read them.
    """

    kinds: ClassVar[Mapping[str, AnswerKind]] = KINDS
    ends: ClassVar[Mapping[str, Any]]
    besides: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def url(self, endpoint: Any, *, stream: bool = False) -> str:
        """Return the address that a request is sent to."""

    @abstractmethod
    def body(self, text: str, kind: AnswerKind) -> dict[str, Any]:
        """Return a request that asks a question."""

    @abstractmethod
    def whole(self, value: Any) -> Any:
        """Return an answer as its official type."""

    @abstractmethod
    def events(self, values: Sequence[Any]) -> None:
        """Check that each event of a stream is of an official type."""

    @abstractmethod
    def streamed(self, endpoint: Any, body: Mapping[str, Any]) -> Any:
        """Return the answer that the official SDK assembles of a stream."""

    @abstractmethod
    def said(self, typed: Any) -> Said:
        """Return what an answer says."""

    @abstractmethod
    def refused(self, status: int, value: Any) -> None:
        """Check that a refusal is the official type's."""

    @abstractmethod
    def broken(self, events: Sequence[Any]) -> None:
        """Check the events of a stream whose turn fails."""

    def expected(self, kind: AnswerKind) -> Said:
        """Return what an answer of a kind says in this protocol."""
        return kind.said._replace(end=self.ends[kind.said.end])


def _openai(endpoint: Any) -> Any:
    import openai

    return openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0)


def _openai_refusal(status: int, value: Any) -> None:
    """`type` says of a status what the SDK's exception of that status does."""
    from openai.types.shared import ErrorObject

    assert {*value} == {"error"}
    error = accepted(ErrorObject, value["error"])
    assert {*value["error"]} == {"code", "message", "param", "type"}
    assert error.type == {404: "not_found_error"}.get(status, "invalid_request_error")


class ChatTypes(OfficialDialect):
    """Chat completions."""

    ends: ClassVar = {
        "stop": "stop",
        "calls": "tool_calls",
        "length": "length",
        "stop string": "stop",
    }
    # As vLLM and DeepSeek write thinking.
    besides: ClassVar = [
        f"{kind}.{name}"
        for kind in ("ChatCompletionMessage", "ChoiceDelta")
        for name in ("reasoning", "reasoning_content")
    ]

    def url(self, endpoint: Any, *, stream: bool = False) -> str:
        return f"{endpoint.base_url}/chat/completions"

    def body(self, text: str, kind: AnswerKind) -> dict[str, Any]:
        asked = {"model": "m", "messages": [user(text)], "tools": [LOOKUP], "logprobs": True}
        return {**asked, "max_tokens": kind.most, "stop": kind.stop}

    def whole(self, value: Any) -> Any:
        from openai.types.chat import ChatCompletion

        typed = accepted(ChatCompletion, value, self.besides)
        thinking = (typed.choices[0].message.model_extra or {}).values()
        assert all(isinstance(text, str) for text in thinking)
        return typed

    def events(self, values: Sequence[Any]) -> None:
        from openai.types.chat import ChatCompletionChunk

        chunks = [accepted(ChatCompletionChunk, value, self.besides) for value in values]
        assert len({chunk.id for chunk in chunks}) == 1
        assert chunks[0].choices[0].delta.role == "assistant"
        *others, last = (choice for chunk in chunks for choice in chunk.choices)
        assert not any(choice.finish_reason for choice in others)
        assert last.finish_reason
        assert (chunks[-1].choices, chunks[-1].usage is None) == ([], False)

    def streamed(self, endpoint: Any, body: Mapping[str, Any]) -> Any:
        from openai.lib.streaming.chat import ChatCompletionStreamState

        state: Any = ChatCompletionStreamState()
        with _openai(endpoint).chat.completions.create(**body, stream=True) as chunks:
            for chunk in chunks:
                state.handle_chunk(chunk)
        return state.current_completion_snapshot

    def said(self, typed: Any) -> Said:
        (choice,) = typed.choices
        message = choice.message
        calls = [call.function for call in message.tool_calls or ()]
        return Said(
            getattr(message, "reasoning_content", None) or "",
            message.content or "",
            tuple((call.name, json.loads(call.arguments)) for call in calls),
            choice.finish_reason,
        )

    def refused(self, status: int, value: Any) -> None:
        _openai_refusal(status, value)

    def broken(self, events: Sequence[Any]) -> None:
        (event,) = events
        _openai_refusal(400, event)


_PATCH = "*** Begin Patch\n\u00e9"
_OWN_CALLS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "a custom tool": ("patch", {"input": _PATCH}, _PATCH),
    "a custom tool with other arguments": ("patch", {"a": 1}, '{"a": 1}'),
    "a custom tool of a namespace": ("files__edit", {"input": _PATCH}, _PATCH),
    "a tool of a namespace": ("files__read", {"a": "x"}, {"a": "x"}),
    "a tool search": ("tool_search", {"query": "x"}, {"query": "x"}),
}


class ResponsesTypes(OfficialDialect):
    """OpenAI Responses, which has no stop strings, and calls of its own."""

    # Missing in the type of the answer, though not in that of the item that OpenAI keeps.
    besides = ("ResponseCustomToolCall.status",)
    ends: ClassVar = {"stop": "completed", "calls": "completed", "length": "max_output_tokens"}
    kinds: ClassVar = {
        **{name: kind for name, kind in KINDS.items() if kind.stop is None},
        **{
            name: AnswerKind(
                a_call(flat, **arguments),
                Said(calls=((flat, given),), end="calls"),
            )
            for name, (flat, arguments, given) in _OWN_CALLS.items()
        },
    }
    _TOOLS: ClassVar = [
        {"type": "function", "strict": False, **LOOKUP["function"]},  # type: ignore[dict-item]
        {"type": "custom", "name": "patch"},
        {
            "type": "namespace",
            "name": "files",
            "description": "Files.",
            "tools": [
                {"type": "function", "name": "read", "parameters": SCHEMA},
                {"type": "custom", "name": "edit"},
            ],
        },
        {"type": "tool_search", "execution": "client", "parameters": SCHEMA},
        {"type": "web_search"},  # OpenAI's servers would run it: it is left out
    ]

    def url(self, endpoint: Any, *, stream: bool = False) -> str:
        return f"{endpoint.base_url}/responses"

    def body(self, text: str, kind: AnswerKind) -> dict[str, Any]:
        return {
            "model": "m",
            "input": text,
            "tools": self._TOOLS,
            "max_output_tokens": kind.most,
            # An answer repeats these.
            "metadata": {"a": "b"},
            "parallel_tool_calls": True,
            "temperature": 1,
        }

    def whole(self, value: Any) -> Any:
        from openai.types.responses import Response

        return accepted(Response, value, self.besides)

    def events(self, values: Sequence[Any]) -> None:
        from openai.types.responses import ResponseStreamEvent

        events = [accepted(ResponseStreamEvent, value, self.besides) for value in values]
        assert [event.sequence_number for event in events] == [*range(len(events))]
        kinds = [event.type for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] in ("response.completed", "response.incomplete")
        assert kinds[-1] == f"response.{events[-1].response.status}"
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert done == events[-1].response.output

    def streamed(self, endpoint: Any, body: Mapping[str, Any]) -> Any:
        with _openai(endpoint).responses.create(**body, stream=True) as events:
            *others, last = events
        assert last.type != "error", last.message  # which the SDK hands on, and does not raise
        deltas = "".join(event.delta for event in others if event.type.endswith(".delta"))
        said = self.said(last.response)
        texts = [said.thinking, said.text]
        for item in last.response.output:
            texts += [getattr(item, field, "") for field in ("arguments", "input")]
        assert deltas == "".join(text for text in texts if isinstance(text, str))
        return last.response

    def said(self, typed: Any) -> Said:
        thinking, calls = "", []
        for item in typed.output:
            if item.type == "reasoning":
                thinking += "".join(part.text for part in item.summary)
            elif item.type == "function_call":
                calls.append((_flat(item), json.loads(item.arguments)))
            elif item.type == "custom_tool_call":
                calls.append((_flat(item), item.input))
            elif item.type == "tool_search_call":
                calls.append(("tool_search", item.arguments))
        cut = typed.incomplete_details
        assert (typed.status == "incomplete") == (cut is not None)
        return Said(thinking, typed.output_text, tuple(calls), cut.reason if cut else typed.status)

    def refused(self, status: int, value: Any) -> None:
        _openai_refusal(status, value)

    def broken(self, events: Sequence[Any]) -> None:
        from openai.types.responses import ResponseErrorEvent

        (event,) = events
        assert accepted(ResponseErrorEvent, event).sequence_number == 0


def _flat(item: Any) -> str:
    return str(item.name if item.namespace is None else f"{item.namespace}__{item.name}")


class MessagesTypes(OfficialDialect):
    """Anthropic Messages. Claude Code and the tool runner read the types of its beta."""

    ends: ClassVar = {
        "stop": ("end_turn", False),
        "calls": ("tool_use", False),
        "length": ("max_tokens", False),
        "stop string": ("stop_sequence", True),
    }

    def url(self, endpoint: Any, *, stream: bool = False) -> str:
        return f"{endpoint.anthropic_url}/v1/messages"

    def body(self, text: str, kind: AnswerKind) -> dict[str, Any]:
        return {
            "model": "m",
            "messages": [user(text)],
            "tools": [{"name": "lookup", "input_schema": SCHEMA}],
            "max_tokens": kind.most,
            "stop_sequences": [kind.stop] if kind.stop else [],
        }

    def whole(self, value: Any) -> Any:
        from anthropic.types import Message
        from anthropic.types.beta import BetaMessage

        accepted(BetaMessage, value)
        return accepted(Message, value)

    def events(self, values: Sequence[Any]) -> None:
        from anthropic.types import RawMessageStreamEvent
        from anthropic.types.beta import BetaRawMessageStreamEvent

        for value in values:
            accepted(BetaRawMessageStreamEvent, value)
        kinds = [accepted(RawMessageStreamEvent, value).type for value in values]
        assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
        blocks = [v["index"] for v in values if v["type"] == "content_block_start"]
        assert blocks == [*range(kinds.count("content_block_stop"))]

    def streamed(self, endpoint: Any, body: Mapping[str, Any]) -> Any:
        with _anthropic(endpoint).messages.stream(**body) as stream:
            return stream.get_final_message()

    def said(self, typed: Any) -> Said:
        blocks = typed.content
        assert all(block.signature for block in blocks if block.type == "thinking")
        return Said(
            "".join(block.thinking for block in blocks if block.type == "thinking"),
            "".join(block.text for block in blocks if block.type == "text"),
            tuple((block.name, block.input) for block in blocks if block.type == "tool_use"),
            (typed.stop_reason, typed.stop_sequence is not None),
        )

    def refused(self, status: int, value: Any) -> None:
        from anthropic.types import ErrorResponse
        from anthropic.types.beta_error_response import BetaErrorResponse

        accepted(BetaErrorResponse, value)
        kinds = {404: "not_found_error", 500: "api_error"}
        kind = accepted(ErrorResponse, value).error.type
        assert kind == kinds.get(status, "invalid_request_error")

    def broken(self, events: Sequence[Any]) -> None:
        (event,) = events
        self.refused(400, event)


def _anthropic(endpoint: Any) -> Any:
    import anthropic

    url, key = endpoint.anthropic_url, endpoint.api_key
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


class GeminiTypes(OfficialDialect):
    """Gemini generateContent. Its types need no field, so those that clients need are listed."""

    ends: ClassVar = {
        "stop": "STOP",
        "calls": "STOP",
        "length": "MAX_TOKENS",
        "stop string": "STOP",
    }

    def url(self, endpoint: Any, *, stream: bool = False) -> str:
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"{endpoint.gemini_url}/v1beta/models/m:{verb}"

    def body(self, text: str, kind: AnswerKind) -> dict[str, Any]:
        config = {"maxOutputTokens": kind.most, "stopSequences": [kind.stop] if kind.stop else []}
        declared = {"name": "lookup", "parametersJsonSchema": SCHEMA}
        return {
            "contents": [{"role": "user", "parts": [{"text": text}]}],
            "tools": [{"functionDeclarations": [declared]}],
            "generationConfig": config,
        }

    def whole(self, value: Any) -> Any:
        typed = self._response(value)
        assert typed.candidates[0].finish_reason is not None
        usage = typed.usage_metadata
        counts = usage.prompt_token_count, usage.candidates_token_count
        assert usage.total_token_count == sum(counts)
        return typed

    def events(self, values: Sequence[Any]) -> None:
        *others, _ = values
        self.whole(values[-1])
        for value in others:
            (candidate,) = self._response(value).candidates
            assert candidate.finish_reason is None
            assert len(candidate.content.parts) == 1
        assert len({value["responseId"] for value in values}) == 1

    def _response(self, value: Any) -> Any:
        from google.genai.types import GenerateContentResponse

        typed = accepted(GenerateContentResponse, value)
        assert (typed.model_version, bool(typed.response_id)) == ("m", True)
        (candidate,) = typed.candidates
        assert (candidate.index, candidate.content.role) == (0, "model")
        return typed

    def streamed(self, endpoint: Any, body: Mapping[str, Any]) -> Any:
        config = {**body["generationConfig"], "tools": body["tools"]}
        with _genai(endpoint) as client:
            chunks = [
                *client.models.generate_content_stream(
                    model="m", contents=body["contents"], config=config
                )
            ]
        *others, last = chunks
        content = last.candidates[0].content
        before = [part for chunk in others for part in chunk.candidates[0].content.parts]
        content.parts = [*before, *(content.parts or ())]
        return last

    def said(self, typed: Any) -> Said:
        (candidate,) = typed.candidates
        parts = candidate.content.parts or ()
        texts = [(bool(part.thought), part.text) for part in parts if part.text is not None]
        calls = [part.function_call for part in parts if part.function_call]
        assert bool([part for part in parts if part.thought_signature]) == any(
            thought for thought, _ in texts
        )
        return Said(
            "".join(text for thought, text in texts if thought),
            "".join(text for thought, text in texts if not thought),
            tuple((call.name, call.args) for call in calls),
            candidate.finish_reason.value,
        )

    def refused(self, status: int, value: Any) -> None:
        from google.genai.errors import APIError

        error = APIError(0, value)
        assert {*value} == {"error"}
        assert {*value["error"]} == {"code", "message", "status"}
        kinds = {404: "NOT_FOUND", 500: "INTERNAL"}
        kind = kinds.get(status, "INVALID_ARGUMENT")
        assert (error.code, error.status, bool(error.message)) == (status, kind, True)

    def broken(self, events: Sequence[Any]) -> None:
        (event,) = events
        self.refused(400, event)


def _genai(endpoint: Any) -> Any:
    from google import genai

    return genai.Client(
        api_key=endpoint.api_key, http_options={"base_url": endpoint.gemini_url}, vertexai=False
    )


OFFICIAL: dict[str, OfficialDialect] = {
    "chat": ChatTypes(),
    "responses": ResponsesTypes(),
    "messages": MessagesTypes(),
    "gemini": GeminiTypes(),
}
