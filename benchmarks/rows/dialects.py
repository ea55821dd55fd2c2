"""A gateway call in each dialect, compared with chat completions and with `json.loads`.

The same conversation is held in four protocols. The time of a call is measured as in the row
`gateway`: the CPU time of the server's process, with the engine's share and HTTP.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.figures import Need, Row, require_same
from benchmarks.rows.gateway import ABUT, TOOL, Server, Talk, case, started_server
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench

_FUNCTION: Mapping[str, Any] = TOOL["function"]
_DECLARED = {"name": _FUNCTION["name"], "description": _FUNCTION["description"]}
_MEASURED_TOKENS = 30_000
_CALL_S = 1.2e-3
# Missed: a server that only parses the body and answers takes 1.5 times as long as the parsing
# (the row `gateway` has such a server).
_MOST_PARSINGS = 1.3


class _Messages(Talk):
    """A conversation in Anthropic's Messages."""

    path: ClassVar[str] = "/v1/messages"

    def reply(self, text: str) -> None:
        calls = [block for block in self._history[-1]["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": c["id"], "content": text} for c in calls]
        self._history.append({"role": "user", "content": results})

    def _asked(self) -> dict[str, Any]:
        tool = {**_DECLARED, "input_schema": _FUNCTION["parameters"]}
        asked = {"model": "policy", "max_tokens": 32_000, "messages": self._history}
        return {**asked, "tools": [tool]}

    def _hear(self, said: Any) -> int:
        self._history.append({"role": "assistant", "content": said["content"]})
        return int(said["usage"]["input_tokens"] + said["usage"]["output_tokens"])


class _Responses(Talk):
    """A conversation in OpenAI's Responses."""

    path: ClassVar[str] = "/v1/responses"

    def reply(self, text: str) -> None:
        id_ = self._history[-1]["call_id"]
        self._history.append({"type": "function_call_output", "call_id": id_, "output": text})

    def _asked(self) -> dict[str, Any]:
        tool = {"type": "function", **_FUNCTION}
        return {"model": "policy", "input": self._history, "tools": [tool]}

    def _hear(self, said: Any) -> int:
        self._history += said["output"]
        return int(said["usage"]["total_tokens"])


class _Contents(Talk):
    """A conversation in Gemini's generateContent."""

    path: ClassVar[str] = "/v1beta/models/policy:generateContent"

    def say(self, text: str) -> None:
        self._history.append({"role": "user", "parts": [{"text": text}]})

    def reply(self, text: str) -> None:
        parts = self._history[-1]["parts"]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        results = [
            {"id": call["id"], "name": call["name"], "response": {"output": text}} for call in calls
        ]
        answered = [{"functionResponse": result} for result in results]
        self._history.append({"role": "user", "parts": answered})

    def _asked(self) -> dict[str, Any]:
        declared = {**_DECLARED, "parametersJsonSchema": _FUNCTION["parameters"]}
        return {"contents": self._history, "tools": [{"functionDeclarations": [declared]}]}

    def _hear(self, said: Any) -> int:
        self._history.append(said["candidates"][0]["content"])
        return int(said["usageMetadata"]["totalTokenCount"])


CHAT = "chat completions"
DIALECTS: Mapping[str, type[Talk]] = {
    CHAT: Talk,
    "Messages": _Messages,
    "Responses": _Responses,
    "generateContent": _Contents,
}


def parsed(dialect: str) -> str:
    """Return the side that only parses a dialect's body."""
    return f"json.loads, {dialect}"


def measure(workbench: Workbench) -> Row:
    """Hold the same conversations in each dialect, at several lengths."""
    scale = workbench.scale
    workbench.peer("aiohttp")
    row = Row(
        "dialects",
        f"answer a gateway call with {scale.gateway_bytes:,} bytes of new messages in each "
        "dialect, without sampling",
        equal="the token ids of the prompts, in all dialects",
        notes=[
            "CPU time as in the row above, for conversations with the same content. In each round, "
            f"{scale.gateway_conversations} conversations send a call, one after the other; the "
            "first call is not counted.",
            f"{parsed('…')}: one `json.loads` of the same body, in a process that does nothing "
            "else. A call needs more than that: the row above has a server that reads the body and "
            "answers, and one that also encodes the new text.",
        ],
    )
    replies, new = Replies(11, scale.reply_bytes), Replies(13, scale.gateway_bytes)
    lengths = scale.dialect_lengths
    sets, talks = scale.gateway_sets, scale.gateway_conversations
    rollouts = len(lengths) * sets * talks * len(DIALECTS)
    with started_server(workbench, ABUT, str(rollouts)) as server:
        endpoints = iter(server.endpoints)
        for length in lengths:
            rounds: list[dict[str, float]] = []
            for _ in range(sets):
                held = {
                    name: [kind(server, *next(endpoints)) for _ in range(talks)]
                    for name, kind in DIALECTS.items()
                }
                for same in zip(*held.values(), strict=True):
                    _grow(same, length, replies)
                server.forget()
                _asked_all(server, held, new)  # not counted
                rounds += [_asked_all(server, held, new) for _ in range(scale.gateway_rounds)]
            row.add(case(length), {side: [taken[side] for taken in rounds] for side in rounds[0]})
    _require(row)
    return row


def _grow(same: Sequence[Talk], tokens: int, replies: Replies) -> None:
    """Grow conversations with the same content to `tokens` tokens; they end with an answer."""
    for talk in same:
        talk.ask(talk.body())
    while same[0].tokens < tokens:
        (text,) = replies.take(1)
        for talk in same:
            talk.reply(text)
            talk.ask(talk.body())


def _asked_all(
    server: Server, held: Mapping[str, Sequence[Talk]], new: Replies
) -> dict[str, float]:
    """Send a call in each conversation; return the seconds of a call and of its JSON, by side.

    Raises:
        ResultsDiffer: the prompts of two dialects differ.
    """
    texts = new.take(len(held[CHAT]))
    seconds: dict[str, float] = {}
    prompts: dict[str, list[list[int]]] = {}
    for name, talks in held.items():
        for talk, text in zip(talks, texts, strict=True):
            talk.reply(text)
        bodies = [talk.body() for talk in talks]
        seconds[parsed(name)] = _parsing_s(bodies)
        for number, (talk, body) in enumerate(zip(talks, bodies, strict=True)):
            if number == 1:
                began = server.clock()
            talk.ask(body)
        seconds[name] = (server.clock() - began) / (len(talks) - 1)
        prompts[name] = server.prompts()
    for name, asked in prompts.items():
        for ours, theirs in zip(prompts[CHAT], asked, strict=True):
            require_same(f"prompt of {len(ours)} tokens", name, ours, theirs)
    return {side: seconds[side] for name in held for side in (name, parsed(name))}


def _parsing_s(bodies: Sequence[bytes]) -> float:
    """Return the CPU seconds of `json.loads` per body; the first body is not counted."""
    json.loads(bodies[0])
    began = time.process_time()
    for body in bodies[1:]:
        json.loads(body)
    return (time.process_time() - began) / (len(bodies) - 1)


def _require(row: Row) -> None:
    """Require a time of each dialect, and a ratio to one `json.loads` of its body."""
    long = case(_MEASURED_TOKENS)
    for name in DIALECTS:
        taken_s, parsing_s = row.median(name, long), row.median(parsed(name), long)
        if taken_s is None or parsing_s is None:
            continue
        row.needs.append(Need(f"{name}, {long}", taken_s, "at most", _CALL_S, "s"))
        what = f"{name} ÷ one json.loads of its body, {long}"
        row.needs.append(Need(what, taken_s / parsing_s, "at most", _MOST_PARSINGS))
