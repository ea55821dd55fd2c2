"""One conversation in each of three dialects, and edits of what its client sends back."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from abut.gateway.server.gateway import Gateway
from tests.kit.clients.dialect_clients import Client, GeminiClient, MessagesClient, ResponsesClient
from tests.kit.stage.agents import LOOKUP, a_call, user

SYSTEM = "You are a finder."
QUESTION = "What is it?"
TEXTS = (
    "<think>\nI should look.\n</think>\n\n" + a_call(text="Let me see.\n", a="one"),
    a_call(a="two") + "\n" + a_call(a="three"),
    "It is one.",
    "Goodbye.",
)
"""What the policy says, turn for turn."""
FOUND = (("found one",), ("found two", "found three"))
"""What the calls of its first two turns find."""

Change = Callable[[list[Any]], object]


class Talk(ABC):
    """A conversation up to its third answer, and what a client sends next.

    Attributes:
        client: has asked twice.
        history: of the third request.
        answers: the first two, as the client got them.
    """

    kind: ClassVar[type[Client]]
    fields: ClassVar[dict[str, Any]]
    """System prompt and tools."""

    def __init__(self, gateway: Gateway) -> None:
        self.client: Any = self.kind(gateway, **self.fields)
        self.history: list[Any] = [self.said(QUESTION)]
        self.answers: list[Any] = []
        for found in FOUND:
            self.answers.append(answer := self.client.ask(self.history))
            self.history += self.answered(answer, found)

    @staticmethod
    @abstractmethod
    def said(text: str) -> dict[str, Any]:
        """Return what a user says."""

    @staticmethod
    @abstractmethod
    def answered(answer: Any, found: Sequence[str] = ()) -> list[Any]:
        """Return an answer as it is sent back, and what its calls have found."""

    def change(self, change: Change) -> None:
        """Send another history; the client's own is unchanged."""
        self.history = copy.deepcopy(self.history)
        change(self.history)

    def goes_on(self, **fields: Any) -> bool:
        """Whether the history is the conversation that was said."""
        before = len(self.client.causes)
        self.client.ask(self.history, **fields)
        return len(self.client.causes) == before


class MessagesTalk(Talk):
    """In Anthropic Messages."""

    kind = MessagesClient
    fields: ClassVar[dict[str, Any]] = {
        "system": [
            {
                "type": "text",
                "text": "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli;",
            },
            {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [
            {
                "name": "lookup",
                "description": "Look up.",
                "input_schema": LOOKUP["function"]["parameters"],  # type: ignore[index]
            }
        ],
    }
    said = staticmethod(user)

    @staticmethod
    def answered(answer: Any, found: Sequence[str] = ()) -> list[Any]:
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        blocks = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": text}
            for call, text in zip(calls, found, strict=True)
        ]
        return [answer, *[{"role": "user", "content": blocks}] * bool(blocks)]


class ResponsesTalk(Talk):
    """In OpenAI Responses: nine items, of which the first answer is three and the second two."""

    kind = ResponsesClient
    fields: ClassVar[dict[str, Any]] = {
        "instructions": SYSTEM,
        "tools": [{"type": "function", "strict": False, **LOOKUP["function"]}],  # type: ignore[dict-item]
    }
    said = staticmethod(user)

    @staticmethod
    def answered(answer: Any, found: Sequence[str] = ()) -> list[Any]:
        calls = [item for item in answer["output"] if item["type"].endswith("_call")]
        return [
            *answer["output"],
            *(
                {"type": "function_call_output", "call_id": call["call_id"], "output": text}
                for call, text in zip(calls, found, strict=True)
            ),
        ]


class GeminiTalk(Talk):
    """In Gemini generateContent."""

    kind = GeminiClient
    fields: ClassVar[dict[str, Any]] = {
        "systemInstruction": {"parts": [{"text": SYSTEM}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "lookup",
                        "description": "Look up.",
                        "parameters": {
                            "type": "OBJECT",
                            "properties": {"a": {"type": "STRING"}},
                            "required": ["a"],
                        },
                    }
                ]
            }
        ],
    }

    @staticmethod
    def said(text: str) -> dict[str, Any]:
        return {"role": "user", "parts": [{"text": text}]}

    @staticmethod
    def answered(answer: Any, found: Sequence[str] = ()) -> list[Any]:
        calls = [part["functionCall"] for part in answer.get("parts", ()) if "functionCall" in part]
        parts = [
            {"functionResponse": {**call, "args": None, "response": {"result": text}}}
            for call, text in zip(calls, found, strict=True)
        ]
        return [answer, *[{"role": "user", "parts": parts}] * bool(parts)]


TALKS: dict[str, type[Talk]] = {
    "messages": MessagesTalk,
    "responses": ResponsesTalk,
    "gemini": GeminiTalk,
}


def edited(path: Sequence[Any], value: Any) -> Change:
    """A change of what is at a place; None deletes it."""

    def edit(history: list[Any]) -> None:
        *way, last = path
        at = _at(history, way)
        if value is None:
            del at[last]
        else:
            at[last] = value

    return edit


def reversed_at(*path: Any) -> Change:
    """A change of the order of what is at a place."""
    return lambda history: _at(history, path).reverse()


def _at(history: list[Any], path: Sequence[Any]) -> Any:
    at: Any = history
    for key in path:
        at = at[key]
    return at
