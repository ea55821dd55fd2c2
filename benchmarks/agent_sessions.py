"""Sessions of real agents: their structure was recorded, and their texts are made up.

`agent_sessions.json` has the roles of all messages and the length of each text;
`scripts/agent_sessions.py` read them from recordings of the unmodified programs. The policy of the
recordings was a script, so its answers are short.
"""

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.texts import word

FILE = Path(__file__).with_name("agent_sessions.json")
KINDS = {
    "Claude Code": "claude",
    "Codex": "codex",
    "mini-swe-agent": "mswe",
    "chat clients": "",
}
"""The prefix of the session names of each kind; a session has the first kind that matches."""


class Turn(NamedTuple):
    """An answer of the policy."""

    think: str | None
    text: str | None
    calls: tuple[tuple[str, dict[str, str]], ...]

    def spoken(self) -> str:
        """Return the text that the policy samples, as Qwen3 writes it."""
        said = "" if self.think is None else f"<think>\n{self.think}\n</think>\n\n"
        said += self.text or ""
        for name, arguments in self.calls:
            said += "\n" if said and not said.endswith("\n") else ""
            call = json.dumps({"name": name, "arguments": arguments})
            said += f"<tool_call>\n{call}\n</tool_call>"
        return f"{said}<|im_end|>"


class SessionRequest(NamedTuple):
    """A request as a client of chat completions sends it, and its answer."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    answer: Turn


def sessions() -> dict[str, list[list[SessionRequest]]]:
    """Return all sessions, each a list of requests, by kind."""
    found: dict[str, list[list[SessionRequest]]] = {kind: [] for kind in KINDS}
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    lengths = tuple(recorded["texts"])
    for session in recorded["sessions"]:
        kind = next(kind for kind, begins in KINDS.items() if session["name"].startswith(begins))
        found[kind].append(_requests(session["requests"], lengths))
    return found


def _requests(shapes: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> list[SessionRequest]:
    turns: list[Turn] = []
    requests = []
    for shape in shapes:
        name = _tool_name(shape["tools"][0]) if shape["tools"] else "none"
        says = shape["says"]
        think, text = (
            None if says[key] is None else _text(says[key], lengths[says[key]])
            for key in ("think", "text")
        )
        calls = tuple((name, {"x": _text(n, lengths[n])}) for n in says["calls"])
        messages = _messages(shape["messages"], turns, lengths)
        tools = [_tool(n, lengths[n]) for n in shape["tools"]]
        turns.append(Turn(think, text, calls))
        requests.append(SessionRequest(messages, tools, turns[-1]))
    return requests


def _messages(
    shapes: Sequence[Sequence[Any]], turns: Sequence[Turn], lengths: Sequence[int]
) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    asked: list[str] = []
    for role, number, *thinks in shapes:
        if role == "turn":
            turn = turns[number]
            message: dict[str, Any] = {"role": "assistant", "content": turn.text or ""}
            asked = [call_id(number, place) for place in range(len(turn.calls))]
            if turn.calls:
                message["tool_calls"] = [
                    {"id": id_, "type": "function", "function": {"name": name, "arguments": said}}
                    for id_, (name, said) in zip(asked, turn.calls, strict=True)
                ]
            if thinks[0] and turn.think:
                message["reasoning_content"] = turn.think
            messages.append(message)
            continue
        # Chat completions and Qwen3's template do not have a developer role.
        told = "system" if role == "developer" else role
        message = {"role": told, "content": _text(number, lengths[number])}
        if role == "tool":
            message["tool_call_id"] = asked.pop(0) if asked else "none"
        messages.append(message)
    return messages


def call_id(turn: int, place: int) -> str:
    """Return the id of a call in these sessions; the gateway assigns a different one."""
    return f"call_{turn}_{place}"


def _tool_name(number: int) -> str:
    return f"tool_{number}"


def _tool(number: int, length: int) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    function = {"name": _tool_name(number), "description": _text(number, length)}
    return {"type": "function", "function": {**function, "parameters": parameters}}


@cache
def _text(number: int, length: int) -> str:
    """Return made-up words of `length` characters; the same number gives the same text."""
    draw = random.Random(number)
    words: list[str] = []
    size = 0
    while size < length:
        words.append(word(draw))
        size += len(words[-1]) + 1
    return " ".join(words)[:length].strip() or "a"
