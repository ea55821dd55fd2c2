"""The policy as a model of Inspect: its calls go to the gateway over plain HTTP.

Invariant: a call belongs to the rollout whose solvers make it. A call from anywhere else, such as
a scorer, is an error. Inspect's own OpenAI providers are not used, because they need a version of
the openai package that other environments do not allow.
"""

import asyncio
import functools
import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    Content,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Model,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo

from abut.agents.protocol import Endpoint

NAME = "policy"
"""The policy's name in logs."""

JUDGES = (
    "a scorer calls the policy to grade an answer\n"
    'hint: name another model with model_roles={"grader": "openai/…"}'
)

# Inspect would start with 20 calls at once and adapt to rate limits, which the gateway lacks.
_MAX_CONNECTIONS = 10_000
_FULL = "context_length_exceeded"
_STOPS = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls"}


class PolicyCallError(Exception):
    """A call that the policy did not answer.

    Attributes:
        message: the text that Inspect shows as the sample's error.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class SampleAttempt:
    """One attempt at a rollout: a sample of Inspect, and the endpoint that its solvers call.

    Args:
        endpoint: the rollout's endpoint.
        session: sends the requests.

    Attributes:
        ended: resolves to the logged sample, or to None if Inspect abandoned the sample.
    """

    def __init__(self, endpoint: Endpoint, session: ClientSession) -> None:
        self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._endpoint, self._session = endpoint, session
        self._solving: asyncio.Task[Any] | None = None
        self._is_over = False

    def begin(self) -> None:
        """Route calls of this asyncio task, which runs the sample's solvers, to the endpoint.

        Raises:
            PolicyCallError: the rollout is over.
        """
        if self._is_over:
            raise PolicyCallError("the rollout is over")
        self._solving = asyncio.current_task()
        _ATTEMPT.set(self)

    def give_up(self) -> None:
        """Cancel the sample's solvers, because no rollout waits for the result any more."""
        self._is_over = True
        if self._solving is not None:
            self._solving.cancel()

    async def ask(self, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the gateway's answer to a chat request; None if the context is full.

        Raises:
            PolicyCallError: the gateway refused the request, or cannot be reached.
        """
        url = f"{self._endpoint.base_url}/chat/completions"
        headers = {"Authorization": f"Bearer {self._endpoint.api_key}"}
        try:
            async with self._session.post(url, json=body, headers=headers) as response:
                answer = await response.json()
                status = response.status
        except (ClientError, OSError) as error:
            raise PolicyCallError(f"the gateway cannot be reached: {error!r}") from error
        if status == 200:
            return answer if isinstance(answer, Mapping) else {}
        refusal = answer["error"]
        if refusal["code"] == _FULL:
            return None
        raise PolicyCallError(f"the gateway refused a call: {refusal['message']}")


_ATTEMPT: ContextVar[SampleAttempt | None] = ContextVar("abut_inspect_attempt", default=None)
"""The attempt whose solvers run; None everywhere else, such as in scorers."""


def new_session() -> ClientSession:
    """Return a session for calls to the gateway on the running loop.

    Each call opens its own connection. In a pool, a rollout could pick a connection just as the
    gateway closes it, because the rollout that used it before has ended.
    """
    return ClientSession(
        connector=TCPConnector(limit=0, force_close=True),
        cookie_jar=DummyCookieJar(),
        timeout=ClientTimeout(total=None),
        trust_env=False,
    )


def policy_model(base_url: str) -> Model:
    """Return the policy as a model of Inspect.

    Args:
        base_url: shown in the log, and part of the key of Inspect's cache.
    """
    _register()
    return get_model(
        f"abut/{NAME}",
        base_url=base_url,
        config=GenerateConfig(max_connections=_MAX_CONNECTIONS),
        memoize=False,
    )


def without_policy(scorer: Any) -> Any:
    """Wrap a scorer so that its calls never reach the policy, even if a solver runs the scorer."""

    @functools.wraps(scorer)  # with its name, arguments and metrics, which are attributes
    async def score(state: Any, target: Any) -> Any:
        token = _ATTEMPT.set(None)
        try:
            return await scorer(state, target)
        finally:
            _ATTEMPT.reset(token)

    return score


class PolicyAPI(ModelAPI):  # type: ignore[misc]
    """Sends each call to the gateway, for the rollout whose solvers make the call."""

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Return one answer of the policy.

        Raises:
            PolicyCallError: the call does not belong to a rollout, or was not answered.
        """
        attempt = _ATTEMPT.get()
        if attempt is None:
            raise PolicyCallError(JUDGES)
        answer = await attempt.ask(request_of(input, tools, tool_choice, config))
        if answer is None:  # agents of Inspect end well on this
            return ModelOutput.from_content(NAME, "", stop_reason="model_length")
        return output_of(answer)

    def max_connections(self) -> int:
        """Return a number larger than any batch, because the engine bounds concurrent calls."""
        return _MAX_CONNECTIONS

    def tool_result_images(self) -> bool:
        """Return True, because the gateway accepts or refuses images in tool results itself."""
        return True


@functools.cache
def _register() -> None:
    modelapi("abut")(PolicyAPI)


def request_of(
    messages: Sequence[ChatMessage],
    tools: Sequence[ToolInfo],
    tool_choice: ToolChoice,
    config: GenerateConfig,
) -> dict[str, Any]:
    """Return a chat request; it keeps only `max_tokens` and stop strings of sampling settings.

    Raises:
        PolicyCallError: a message has content that is not text or an image.
    """
    body: dict[str, Any] = {"model": NAME, "messages": [_message(m) for m in messages]}
    if tools:
        body["tools"] = [_tool(tool) for tool in tools]
        body["tool_choice"] = _choice(tool_choice)
        if config.parallel_tool_calls is False:
            body["parallel_tool_calls"] = False
    if config.max_tokens is not None:
        body["max_tokens"] = config.max_tokens
    if config.stop_seqs:
        body["stop"] = config.stop_seqs
    if config.num_choices is not None:
        body["n"] = config.num_choices
    if (form := config.response_schema) is not None:
        schema = form.json_schema.model_dump(exclude_none=True, by_alias=True)
        form_body = {"name": form.name, "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form_body}
    return body


def _message(message: ChatMessage) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": _content(message.content)}
    if message.role == "assistant":
        parts = message.content if isinstance(message.content, list) else []
        if thinking := "".join(p.reasoning for p in parts if isinstance(p, ContentReasoning)):
            made["reasoning_content"] = thinking
        if message.tool_calls:
            made["tool_calls"] = [_call(call) for call in message.tool_calls]
    elif message.role == "tool":
        made["tool_call_id"] = message.tool_call_id
        if message.error is not None:
            made["content"] = f"Error: {message.error.message}"
    return made


def _content(content: str | Sequence[Content]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content if not isinstance(part, ContentReasoning)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Content) -> dict[str, Any]:
    if isinstance(part, ContentText):
        return {"type": "text", "text": part.text}
    if part.type == "image":
        return {"type": "image_url", "image_url": {"url": part.image}}
    raise PolicyCallError(
        f"a message has content of type {part.type!r}, but abut accepts only text and images"
    )


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _tool(tool: ToolInfo) -> dict[str, Any]:
    parameters = tool.parameters.model_dump(exclude_none=True, by_alias=True)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Any:
    if choice == "any":
        return "required"
    if isinstance(choice, str):
        return choice
    return {"type": "function", "function": {"name": choice.name}}


def output_of(answer: Mapping[str, Any]) -> ModelOutput:
    """Return the gateway's chat completion as Inspect's `ModelOutput`."""
    (choice,) = answer["choices"]
    said, usage = choice["message"], answer["usage"]
    text = said.get("content") or ""
    thinking = said.get("reasoning_content")
    content = [ContentReasoning(reasoning=thinking), ContentText(text=text)] if thinking else text
    calls = [_call_of(call) for call in said.get("tool_calls") or ()]
    message = ChatMessageAssistant(
        content=content, tool_calls=calls or None, model=NAME, source="generate"
    )
    stop = _STOPS.get(choice["finish_reason"], "unknown")
    return ModelOutput(
        model=NAME,
        choices=[ChatCompletionChoice(message=message, stop_reason=stop)],
        usage=ModelUsage(
            input_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
            total_tokens=usage["total_tokens"],
        ),
    )


def _call_of(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    return ToolCall(
        id=call["id"], function=function["name"], arguments=json.loads(function["arguments"])
    )
