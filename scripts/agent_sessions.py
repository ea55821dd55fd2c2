"""Write the structure of recorded agent sessions, without their texts, for the benchmark `saved`.

    ABUT_DIALECTS=… ABUT_CLIENTS=… python -m scripts.agent_sessions benchmarks/agent_sessions.json

For each request of a session, the structure has its tools, the roles and texts of its messages, and
the policy's answer. A text is a number and a length in characters. Equal texts have equal numbers,
so a history begins with an earlier one exactly if the recorded one did.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from abut.gateway.dialects.anthropic import Anthropic
from abut.gateway.dialects.chat import Chat
from abut.gateway.dialects.responses import Responses
from tests.kit.clients import dialect_recordings, recordings

DIALECTS = r"(claude\w*|codex|mswe_\w+)([-.\w]*)__(main|sub\w*|compact\w*|autocompact|swe)$"
CHAT = r"\w+__main$"
_PLACEHOLDER = re.compile(r"⟨(\d+) characters, #\w+⟩")


class Shapes:
    """Replaces texts by numbers and lengths."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of one text; placeholders count with the length of their text."""
        if text not in self._numbers:
            self._numbers[text] = len(self.lengths)
            hidden = sum(int(n) for n in _PLACEHOLDER.findall(text))
            self.lengths.append(max(1, len(_PLACEHOLDER.sub("", text)) + hidden))
        return self._numbers[text]

    def session(self, name: str, asked: Sequence[tuple[Any, Mapping[str, Any]]]) -> dict[str, Any]:
        """Return the structure of a session.

        Args:
            name: the name of the recording.
            asked: each request as its dialect parsed it, and the turn that answered it.
        """
        said: list[tuple[str, list[Any]]] = []
        requests = []
        for request, turn in asked:
            texts: list[list[Any]] = []
            for message in request.messages:
                texts.append(self._message(message, said))
            tools = [json.dumps(tool, sort_keys=True) for tool in request.tools or ()]
            calls = [[*call] for call in turn.get("calls") or ()]
            says = {
                "think": None if not turn.get("think") else self.number(turn["think"]),
                "text": None if not turn.get("text") else self.number(turn["text"]),
                "calls": [self.number(json.dumps(call[1])) for call in calls],
            }
            requests.append(
                {"tools": [self.number(tool) for tool in tools], "messages": texts, "says": says}
            )
            said.append(((turn.get("text") or "").strip(), [_plain(call[1]) for call in calls]))
        return {"name": name, "requests": requests}

    def _message(self, message: Mapping[str, Any], said: Sequence[tuple[str, list[Any]]]) -> Any:
        text = _text_of(message.get("content"))
        if message["role"] != "assistant":
            return [message["role"], self.number(text)]
        calls = [_plain(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        thinks = bool(message.get("reasoning_content") or message.get("reasoning"))
        for number in reversed(range(len(said))):
            if said[number] == (text.strip(), calls):
                return ["turn", number, thinks]
        return ["assistant", self.number(text + json.dumps(calls))]


def _text_of(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n".join(str(part.get("text", part)) for part in content)


def _plain(arguments: Any) -> Any:
    """Return arguments by value, independent of their spelling."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _of_dialects() -> Iterator[tuple[str, list[Any]]]:
    dialects = {"messages": Anthropic(), "input": Responses()}
    for path in sorted((dialect_recordings.folder() / "requests").glob("*.json")):
        if re.match(DIALECTS, path.stem):
            yield (
                path.stem,
                [
                    (dialects[one.kind].read(one.body), one.said)
                    for one in dialect_recordings.recorded(path.stem)
                    if one.said is not None and one.kind and one.status == 200
                ],
            )


def _of_chat() -> Iterator[tuple[str, list[Any]]]:
    for name, requests in recordings.recordings().items():
        if re.match(CHAT, name):
            yield name, [(Chat().read(r.body), _turn(r.message)) for r in requests if r.message]


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls") or ()
    return {
        "think": message.get("reasoning_content") or message.get("reasoning"),
        "text": message.get("content"),
        "calls": [(c["function"]["name"], c["function"]["arguments"]) for c in calls],
    }


def main(path: str) -> None:
    """Write the file."""
    shapes = Shapes()
    sessions = [shapes.session(name, asked) for name, asked in (*_of_dialects(), *_of_chat())]
    lines = ",\n  ".join(json.dumps(one, separators=(",", ":")) for one in sessions)
    lengths = json.dumps(shapes.lengths, separators=(",", ":"))
    text = f'{{"texts": {lengths},\n "sessions": [\n  {lines}]}}\n'
    Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
