"""Samplers that answer with messages instead of tokens, such as hosted models; evaluation only."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

from abut.address import Address, check_one_authorization, checked_headers
from abut.concurrency.clock import backoff
from abut.errors import SamplerError
from abut.messages import Message
from abut.pickling import stays

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 20.0


@runtime_checkable
class TextSampler(Protocol):
    """A sampler that answers with messages; the engine runs many calls at once on its event loop.

    If it is an async context manager, the engine enters it on that loop for each batch.
    """

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
    ) -> Message:
        """Return the next message of the policy.

        Args:
            messages: the conversation so far, in the form of a chat API; the arguments of tool
                calls are JSON text.
            tools: JSON schemas of the tools that the policy can call.
            settings: `seed`, and `max_tokens` and `stop` if the answer is limited.

        Returns:
            A message with `content`, `tool_calls` or both, in the form of a chat API. It may also
            have `finish_reason`, and `usage` with `prompt_tokens` and `completion_tokens`.

        Raises:
            SamplerError: the sampler cannot answer. This ends the run.
        """
        ...


@stays(
    "it holds connections of this process",
    hint="send the sampler's arguments, and create the sampler in the other process",
)
class ChatSampler:
    """A model of an OpenAI-compatible chat API; text only.

    After a 429 or 5xx response, the request is sent again when `Retry-After` allows it.

    Args:
        base_url: the address of the API, which usually ends in `/v1`.
        model: the model name that is sent with each request.
        api_key: sent as a bearer token; None sends no token.
        give_up_s: how long to retry one request before raising an error.
        **settings: sent with each request, such as `temperature` and `max_tokens`.

    Attributes:
        usage: the tokens of all answers so far, as reported by the server.
        seconds: the total time of all answers so far.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        give_up_s: float = 120.0,
        **settings: Any,
    ) -> None:
        address = Address.of(base_url)
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        check_one_authorization("api_key", address, headers)
        self._headers = {**address.headers, **checked_headers("api_key", headers)}
        self._url = address.url
        self._model = model
        self._give_up_s = give_up_s
        self._settings = settings
        self._session: Any = None
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0}
        self.seconds = 0.0

    async def __aenter__(self) -> Self:
        """Open the connections.

        Raises:
            MissingExtraError: aiohttp is not installed.
        """
        from abut.samplers.fleet_server import open_session

        self._session = open_session({})
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the connections."""
        await self._session.close()

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
    ) -> Message:
        """Return the model's next message; see `TextSampler.reply`.

        Raises:
            SamplerError: the server refused, did not return a message, or stayed unavailable for
                `give_up_s`.
        """
        body = {"model": self._model, "messages": messages, **settings, **self._settings}
        if tools:
            body["tools"] = tools
        began = time.monotonic()
        content = await self._send(json.dumps(body).encode(), began)
        self.seconds += time.monotonic() - began
        try:
            answer = json.loads(content)
            choice = answer["choices"][0]
            message = {**choice["message"], "finish_reason": choice.get("finish_reason")}
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise SamplerError(
                f"{self._url} did not answer with a chat message: {content[:200]!r}\n"
                "hint: check base_url, which usually ends in /v1"
            ) from error
        usage = answer.get("usage") or {}
        for name in self.usage:
            self.usage[name] += usage.get(name) or 0
        return message | {"usage": usage}

    async def _send(self, body: bytes, began: float) -> bytes:
        from abut.samplers.fleet_server import FleetServer, Refused, Unavailable

        server = FleetServer(self._url, self._headers)
        waits_s = backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        while True:
            try:
                return await server.send(self._session, "/chat/completions", body)
            except Refused as error:
                raise SamplerError(str(error)) from error
            except Unavailable as error:
                wait_s = error.rest_s if error.rest_s is not None else next(waits_s)
                if time.monotonic() + wait_s - began > self._give_up_s:
                    raise SamplerError(
                        f"the server at {self._url} {error.trouble}, after "
                        f"{time.monotonic() - began:.0f} s of retries\n"
                        "hint: send fewer requests at a time with RolloutConfig(max_requests=…), "
                        f"or retry longer than give_up_s={self._give_up_s:g}"
                    ) from error
                await asyncio.sleep(wait_s)
