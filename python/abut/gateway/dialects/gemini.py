"""Gemini generateContent: bodies to requests, with the spellings of one history that clients have.

Invariant: keys may be written in camelCase or in snake_case, but keys inside a call's arguments, a
tool's response or a schema belong to the user and are never converted. Consecutive contents of the
model are one turn, in the order in which an answer has its parts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from abut._native import Tokenizer
from abut.gateway.dialects.dialect import (
    HttpDialect,
    Like,
    check_form,
    check_tools,
    content_of,
    data_event,
    most_tokens,
    request_like,
    sampling_in,
    stops,
)
from abut.gateway.dialects.gemini_answers import content_chunks, content_response, error_body
from abut.gateway.dialects.gemini_contents import (
    ContentReader,
    image_fields,
    object_of,
    texts_of_content,
    value_of,
)
from abut.gateway.dialects.history_reader import read_history, settings_of
from abut.gateway.dialects.image_fields import ImageField
from abut.gateway.ledger.agent_call import AgentRequest, PolicyAnswer
from abut.gateway.ledger.refusal import Refusal, short
from abut.messages import Message

GeminiRewrite: TypeAlias = Literal["empty_turn_left_out"]
"""A change that a client of generateContent is known to make to an answer of the policy, see
`ChatRewrite`."""

_VERBS = ("generateContent", "streamGenerateContent", "countTokens")
_COUNTED = "generateContentRequest"
# Other verbs and other resources of its API, too.
_LIKE_ROUTE = re.compile(r"/v1beta/|/models/[^/]+:")
_SAMPLING = {"temperature": "temperature", "topP": "top_p", "topK": "top_k", "seed": "seed"}
_READ = frozenset(
    {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "cachedContent"}
    | {"labels", "model", "stream", "rollout_id"}
)
_READ_CONFIG = frozenset(
    {"maxOutputTokens", "stopSequences", "responseMimeType", "responseSchema", "candidateCount"}
    | {"responseJsonSchema", "responseModalities", *_SAMPLING}
)
_MODES = {"AUTO": True, "VALIDATED": True, "ANY": True, "NONE": False, "MODE_UNSPECIFIED": True}
_NO_PARAMETERS = {"type": "object", "properties": {}}
# Fields of a schema that hold values, in which "type" is a name like any other.
_VALUES = ("default", "example", "enum")
# Fields of a schema that hold schemas by names, and "default" is a name like any other.
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


class Gemini(HttpDialect):
    """Gemini generateContent."""

    list_key = "contents"
    paths = tuple(
        f"{version}/models/{{model:[^/]+}}:{verb}"
        for version in ("/v1beta", "/v1", "")
        for verb in _VERBS[:2]
    )
    count_paths = tuple(
        f"{version}/models/{{model:[^/]+}}:{_VERBS[2]}" for version in ("/v1beta", "/v1", "")
    )
    count_key = "totalTokens"
    known_rewrites = get_args(GeminiRewrite)
    id_prefix = "gemini-"
    keep_alive = b"\n"  # google-genai would parse a comment as an answer, and raise
    places_system = True

    def owns(self, path: str) -> bool:
        """Return whether a path is like this dialect's, see `HttpDialect.owns`."""
        return _LIKE_ROUTE.search(path) is not None

    def fields_of(
        self, path: str, named: Mapping[str, str], query: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Return the model, and whether the client wants a stream."""
        stream = path.endswith(":streamGenerateContent")
        if stream and query.get("alt") != "sse":
            raise Refusal(
                "streamGenerateContent answers with server-sent events only\nhint: add ?alt=sse",
                param="alt",
            )
        return {"model": named["model"], "stream": stream}

    def read(
        self,
        body: Mapping[str, Any],
        like: Like | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AgentRequest:
        """Return the request of a body, see `HttpDialect.read`."""
        if value_of(body, _COUNTED) is not None:
            raise Refusal(
                f"{_COUNTED} is a field of countTokens\n"
                f"hint: send the fields of {_COUNTED} at the top level of the body",
                param=_COUNTED,
            )
        if value_of(body, "cachedContent"):
            raise Refusal(
                "cachedContent is not supported: the gateway caches no content\n"
                "hint: send all contents with each request",
                param="cachedContent",
            )
        given = value_of(body, "tools")
        tools = settings_of(like)
        if tools is None or tools.given is not given:
            tools = _tools(given)
        request = request_like(like, lambda: self._fields(body, tools))
        system = _system(body)
        contents = value_of(body, "contents")
        if not isinstance(contents, list) or not contents:
            raise Refusal("contents must be a list with at least one content", param="contents")
        reader = read_history(contents, like, ContentReader(tools))
        return request.with_messages(
            system + reader.messages,
            model=str(body.get("model") or ""),  # the address has these two
            stream=body.get("stream") is True,
            said=reader.digest(system),
            reading=reader.reading,
        )

    def _fields(self, body: Mapping[str, Any], tools: "_DeclaredTools") -> AgentRequest:
        """Return the request of a body, without its messages and the fields of its URL."""
        config = object_of(value_of(body, "generationConfig") or {}, "generationConfig")
        config = {_camel(key): value for key, value in config.items()}
        unmet = self._form(config)
        mode = _mode(body)
        if mode == "ANY":
            unmet.append("toolConfig.mode")
        ignored = [key for key in body if _camel(key) not in _READ and body[key] is not None]
        ignored += [f"generationConfig.{key}" for key in config if key not in _READ_CONFIG]
        return AgentRequest(
            messages=[],
            tools=tools.shown or None,
            max_tokens=most_tokens(config, "maxOutputTokens"),
            stop=stops(config, "stopSequences"),
            calls=_MODES[mode],
            sampling=sampling_in(config, _SAMPLING),
            ignored=sorted([*ignored, *tools.left_out]),
            unmet=unmet,
            rollout_id=body.get("rollout_id"),
            dialect=self,
        )

    def history_in(self, body: Mapping[str, Any]) -> Sequence[Any]:
        """Return the contents, of a request to count as well."""
        counted = value_of(body, _COUNTED)
        return super().history_in(counted if isinstance(counted, dict) else body)

    def image_fields(self, element: Mapping[str, Any], place: int) -> Iterator[ImageField]:
        """Yield the images of a content, see `HttpDialect.image_fields`."""
        return image_fields(element, f"contents[{place}]")

    def read_count(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AgentRequest:
        """Return the request to count: the body itself, or its field `generateContentRequest`."""
        if (counted := value_of(body, _COUNTED)) is not None:
            named = {key: body[key] for key in ("model", "stream", "rollout_id") if key in body}
            body = {**object_of(counted, _COUNTED), **named}
        return super().read_count(body, headers)

    def _form(self, config: Mapping[str, Any]) -> list[str]:
        """Return the fields that constrain the form of the answer and are not enforced."""
        count = config.get("candidateCount")
        if count not in (None, 1):
            raise Refusal(
                f"candidateCount={short(count)}: the gateway draws one sample per request\n"
                "hint: send several requests instead",
                param="candidateCount",
            )
        kinds = config.get("responseModalities")
        if kinds and kinds not in (["TEXT"], ["text"]):
            raise Refusal(
                f"responseModalities={short(kinds)}: the policy writes text only",
                param="responseModalities",
            )
        schema = config.get("responseSchema") or config.get("responseJsonSchema")
        mime = config.get("responseMimeType") or "text/plain"
        if schema is None and mime == "text/plain":
            return []
        name = "responseMimeType" if schema is None else "responseSchema"
        check_form(name, self.unenforced)
        return [name]

    def answer(
        self, answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """Return an answer as a `GenerateContentResponse`."""
        return content_response(answer, model)

    def events(
        self, answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
    ) -> Iterator[bytes]:
        """Yield an answer as server-sent events, one for each part."""
        return map(data_event, content_chunks(answer, model))

    def refused(self, refusal: Refusal) -> dict[str, Any]:
        """Return the JSON of a refusal, as Google writes errors."""
        return error_body(refusal)

    def refused_event(self, refusal: Refusal) -> bytes:
        """Return the event that ends a stream whose turn was refused."""
        return data_event(error_body(refusal))


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(map(str.capitalize, rest))


def _system(body: Mapping[str, Any]) -> list[Message]:
    given = value_of(body, "systemInstruction")
    if given is None:
        return []
    texts = texts_of_content(given, "systemInstruction")
    if not texts:
        return []
    return [{"role": "system", "content": content_of(texts)}]


def _mode(body: Mapping[str, Any]) -> str:
    config = object_of(value_of(body, "toolConfig") or {}, "toolConfig")
    calling = value_of(config, "functionCallingConfig") or {}
    mode = value_of(object_of(calling, "functionCallingConfig"), "mode") or "AUTO"
    if not isinstance(mode, str) or mode.upper() not in _MODES:
        raise Refusal(
            f"toolConfig has mode={short(mode)}: expected one of {', '.join(_MODES)}",
            param="toolConfig",
        )
    return mode.upper()


class _DeclaredTools(NamedTuple):
    """The tools of a body."""

    shown: list[dict[str, Any]]
    left_out: list[str]
    """The names of tools that Google's servers run."""
    given: Any
    """As the body has them."""


def _tools(given: Any) -> _DeclaredTools:
    tools = shown, left_out, _ = _DeclaredTools([], [], given)
    if given is None:
        return tools
    if not isinstance(given, list):
        raise Refusal("tools must be a list of objects", param="tools")
    for tool in given:
        declared = value_of(object_of(tool, "tools"), "functionDeclarations")
        left_out += [f"tools[{key}]" for key in tool if _camel(key) != "functionDeclarations"]
        if not isinstance(declared, list | None):
            raise Refusal("functionDeclarations must be a list", param="tools")
        for function in declared or ():
            name = object_of(function, "tools").get("name")
            if not isinstance(name, str) or not name:
                raise Refusal("a function declaration has no name", param="tools")
            made = {"name": name}
            if function.get("description") is not None:
                made["description"] = function["description"]
            schema = value_of(function, "parametersJsonSchema")
            if schema is None:
                schema = _lowered(function.get("parameters")) or _NO_PARAMETERS
            shown.append({"type": "function", "function": {**made, "parameters": schema}})
    check_tools(shown)
    return tools


def _lowered(schema: Any) -> Any:
    """Return a schema with lower-case type names, as in JSON Schema; Google's are upper-case."""
    if isinstance(schema, list):
        return [_lowered(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower()
        if key == "type" and isinstance(value, str)
        else value
        if key in _VALUES
        else {name: _lowered(inner) for name, inner in value.items()}
        if key in _NAMED and isinstance(value, dict)
        else _lowered(value)
        for key, value in schema.items()
    }
