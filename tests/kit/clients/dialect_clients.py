"""Clients of one's own in three dialects, and one conversation that each of them holds.

What they send is what a test says.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from abut.gateway.ledger.ledger import Ledger
from abut.gateway.server.gateway import Gateway


def send(url: str, key: str, body: Any, **headers: str) -> tuple[int, Any]:
    """Send a body, bytes as they are; returns status and JSON, or the events of a stream."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **(headers or {"x-api-key": key})}
    try:
        with urlopen(Request(url, data, headers), timeout=60) as reply:
            said = reply.read().decode()
            if reply.headers.get_content_type() != "text/event-stream":
                return reply.status, json.loads(said)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
    return 200, events_in(said)


def events_in(stream: str) -> list[dict[str, Any]]:
    """The events of a stream; the name of each is its type, and chat's and Gemini's have neither.

    The mark at the end of a stream of chat is left out.
    """
    events = []
    for block in filter(str.strip, stream.removesuffix("data: [DONE]\n\n").split("\n\n")):
        name, _, data = block.rpartition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == (f"event: {event['type']}" if "type" in event else "")
        events.append(event)
    return events


def ledger_of(gateway: Gateway, rollout: str) -> Ledger | None:
    """The ledger of a rollout without a trainer."""
    standalone = gateway.registry.standalone
    assert standalone is not None
    return standalone.ledger(rollout)


def causes(gateway: Gateway, rollout: str) -> list[str | None]:
    """Why there is each branch of a rollout; None for the first."""
    ledger = ledger_of(gateway, rollout)
    return [] if ledger is None else [branch.cause for branch in ledger.branches]


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream makes, as the official SDK assembles it."""
    message: dict[str, Any] = {}
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            message = json.loads(json.dumps(event["message"]))
        elif kind == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            block, delta = message["content"][event["index"]], dict(event["delta"])
            kind = delta.pop("type")
            if kind == "input_json_delta":
                block["input"] = json.loads(delta["partial_json"])
            else:
                ((field, text),) = delta.items()
                block[field] += text
        elif kind == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    assert events[-1]["type"] == "message_stop"
    return message


class Client:
    """Asks one rollout of a gateway."""

    def __init__(self, gateway: Gateway, rollout: str = "a", **fields: Any) -> None:
        self.gateway, self.rollout = gateway, rollout
        self.fields = {"model": "policy", **fields}

    @property
    def base(self) -> str:
        """The address of the rollout."""
        return self.gateway.endpoint(self.rollout).anthropic_url

    @property
    def causes(self) -> list[str | None]:
        """Why there is each branch; None for the first."""
        return causes(self.gateway, self.rollout)


class MessagesClient(Client):
    """Asks in Anthropic Messages."""

    def __init__(self, gateway: Gateway, rollout: str = "a", **fields: Any) -> None:
        super().__init__(gateway, rollout, **{"max_tokens": 500, **fields})

    @property
    def url(self) -> str:
        return f"{self.base}/v1/messages"

    def post(
        self, messages: Any, path: str = "", headers: Mapping[str, str] | None = None, **fields: Any
    ) -> tuple[int, Any]:
        """Send messages; returns status and JSON, or events."""
        key = {"x-api-key": self.gateway.key}
        body = {**self.fields, "messages": messages, **fields}
        return send(self.url + path, "", body, **{**key, **(headers or {})})

    def ask(self, messages: Any, **fields: Any) -> dict[str, Any]:
        """One turn; returns the assistant's message, as a client sends it back."""
        status, answer = self.post(messages, **fields)
        assert status == 200, answer
        return {"role": "assistant", "content": answer["content"]}


class ResponsesClient(Client):
    """Asks in OpenAI Responses."""

    @property
    def url(self) -> str:
        return f"{self.base}/v1/responses"

    def post(self, items: Any, headers: Any = None, **fields: Any) -> tuple[int, Any]:
        """Send items; returns status and JSON, or events."""
        key = {"Authorization": f"Bearer {self.gateway.key}", **(headers or {})}
        return send(self.url, "", {**self.fields, "input": items, **fields}, **key)

    def ask(self, items: Any, **fields: Any) -> Any:
        """One turn; returns the response."""
        status, answer = self.post(items, **fields)
        assert status == 200, answer
        return answer


class GeminiClient(Client):
    """Asks in Gemini generateContent."""

    def post(
        self,
        contents: Any,
        verb: str = "generateContent",
        version: str = "/v1beta",
        key: str | None = None,
        **fields: Any,
    ) -> tuple[int, Any]:
        """Send contents; returns status and JSON, or the chunks of a stream."""
        url = f"{self.base}{version}/models/{self.fields['model']}:{verb}"
        named = {field: value for field, value in self.fields.items() if field != "model"}
        body = {**named, "contents": contents, **fields}
        return send(url, "", body, **{"x-goog-api-key": key or self.gateway.key})

    def ask(self, contents: Any, **fields: Any) -> dict[str, Any]:
        """One turn; returns its content."""
        status, answer = self.post(contents, **fields)
        assert status == 200, answer
        content: dict[str, Any] = answer["candidates"][0]["content"]
        return content
