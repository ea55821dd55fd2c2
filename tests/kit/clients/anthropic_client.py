"""A client of Anthropic Messages of one's own: what it sends is what a test says."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from abut.gateway.ledger.ledger import Ledger
from abut.gateway.server.gateway import Gateway

TOOL = {
    "name": "lookup",
    "description": "Look up.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
    },
}


def send(url: str, key: str, body: Any, **headers: str) -> tuple[int, Any]:
    """Send a body; returns status and JSON, or the events of a stream."""
    headers = {"content-type": "application/json", **(headers or {"x-api-key": key})}
    try:
        with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=60) as reply:
            said = reply.read().decode()
            if reply.headers.get_content_type() != "text/event-stream":
                return reply.status, json.loads(said)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
    return 200, events_in(said)


def events_in(stream: str) -> list[dict[str, Any]]:
    """The events of a stream; the name of each is its type."""
    events = []
    for block in stream.removesuffix("\n\n").split("\n\n"):
        name, _, data = block.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


class Messages:
    """Asks one rollout of a gateway."""

    def __init__(self, gateway: Gateway, rollout: str = "a", **fields: Any) -> None:
        self.gateway, self.rollout = gateway, rollout
        self.fields = {"model": "policy", "max_tokens": 500, **fields}

    @property
    def url(self) -> str:
        endpoint = self.gateway.endpoint(self.rollout)
        return f"{endpoint.base_url}/messages"

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

    @property
    def causes(self) -> list[str | None]:
        """Why there is each branch; None for the first."""
        return causes(self.gateway, self.rollout)


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


def results(*results: tuple[dict[str, Any], str]) -> dict[str, Any]:
    """A client's message with the result of each call."""
    blocks = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": text}
        for call, text in results
    ]
    return {"role": "user", "content": blocks}


def calls_in(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls of an answer."""
    return [block for block in message["content"] if block["type"] == "tool_use"]
