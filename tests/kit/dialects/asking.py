"""How each protocol is asked: its address, a body, and where the texts of an answer are."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Asking:
    """One protocol, as the simplest client speaks it.

    Attributes:
        path: behind the part that names the rollout.
        stream_path: the same, for a stream.
        list_key: the key of the history.
        said: what a user says.
        fields: of the body beside the history.
        heard: the history that an answer adds.
        text: of an answer.
    """

    path: str
    stream_path: str
    list_key: str
    said: Callable[[str], dict[str, Any]]
    fields: Mapping[str, Any]
    heard: Callable[[Any], list[Any]]
    text: Callable[[Any], str]

    def body(self, *history: Any, stream: bool = False) -> dict[str, Any]:
        """A body, by texts of users and what answers add."""
        said = [self.said(one) if isinstance(one, str) else one for one in history]
        flag = {"stream": True} if stream and self.path == self.stream_path else {}
        return {**self.fields, **flag, self.list_key: said}


def _role(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _part(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}]}


def _parts(reply: Any) -> Any:
    return reply["candidates"][0]["content"]


ASKING: dict[str, Asking] = {
    "chat": Asking(
        path="/v1/chat/completions",
        stream_path="/v1/chat/completions",
        list_key="messages",
        said=_role,
        fields={"model": "policy"},
        heard=lambda reply: [reply["choices"][0]["message"]],
        text=lambda reply: str(reply["choices"][0]["message"]["content"]),
    ),
    "anthropic": Asking(
        path="/v1/messages",
        stream_path="/v1/messages",
        list_key="messages",
        said=_role,
        fields={"model": "policy", "max_tokens": 500},
        heard=lambda reply: [{"role": "assistant", "content": reply["content"]}],
        text=lambda reply: str(reply["content"][-1]["text"]),
    ),
    "responses": Asking(
        path="/v1/responses",
        stream_path="/v1/responses",
        list_key="input",
        said=_role,
        fields={"model": "policy"},
        heard=lambda reply: list(reply["output"]),
        text=lambda reply: str(reply["output"][-1]["content"][-1]["text"]),
    ),
    "gemini": Asking(
        path="/v1beta/models/policy:generateContent",
        stream_path="/v1beta/models/policy:streamGenerateContent?alt=sse",
        list_key="contents",
        said=_part,
        fields={},
        heard=lambda reply: [_parts(reply)],
        text=lambda reply: str(_parts(reply)["parts"][-1]["text"]),
    ),
}


def encoded(body: Any) -> bytes:
    """A body as bytes, its letters as they are."""
    return json.dumps(body, ensure_ascii=False).encode()
