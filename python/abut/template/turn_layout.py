"""The messages and turns of probes, and how errors name messages and texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Literal

from abut.messages import Message


def user(content: str = "abutUser") -> Message:
    """Return a user message for a probe."""
    return {"role": "user", "content": content}


def assistant(content: str = "abutAssistant") -> Message:
    """Return an assistant message for a probe."""
    return {"role": "assistant", "content": content}


REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""The keys of a message from which templates read its thinking."""


def thinks(thought: str) -> Message:
    """Return the keys of a message that thinks, whichever key the template reads."""
    return dict.fromkeys(REASONING_KEYS, thought)


def tool_call(name: str, arguments: Any, call_id: str = "abutCall0") -> dict[str, Any]:
    """Return a call for a probe; the id has nine characters, as Mistral's templates demand."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


NO_NAME = "abutNoName"  # the function of a call whose tool message has no name


@dataclass(frozen=True)
class TurnLayout:
    """A way in which a probe gives an assistant turn to a template.

    Attributes:
        calls: how many tool calls the turn has: none (a plain answer), one for each tool message
            that follows, or one alone, for templates that take no more.
        arguments: as an object or as its JSON text.
    """

    calls: Literal["none", "each", "one"] = "none"
    arguments: Literal["object", "text"] = "object"

    @property
    def what(self) -> str:
        """The name of such a turn in errors."""
        return "answer" if self.calls == "none" else "tool call"

    def turn(
        self, new: Sequence[Message], stem: str, *, thinking: str = "", repeat: int = 1
    ) -> tuple[Message, str]:
        """Return the message, and the word in it that is written last.

        Args:
            new: the messages that follow; the turn calls the tools that answer in them.
            stem: an alphanumeric beginning that occurs in none of these messages.
            thinking: put into the content, before the answer or next to the calls.
            repeat: how often the last call is in the turn.
        """
        if self.calls == "none":
            answer = stem + "answer"
            return {"role": "assistant", "content": thinking + answer}, answer
        last = stem + "call"
        tools = [message for message in new if message["role"] == "tool"]
        tools = tools[:1] if self.calls == "one" else tools
        calls = [
            self._call(message, k, "abutEarlier")
            for k, message in enumerate([*tools[:-1], *[tools[-1]] * repeat])
        ]
        calls[-1] = self._call(tools[-1], len(calls) - 1, last)
        return {"role": "assistant", "content": thinking, "tool_calls": calls}, last

    def _call(self, message: Message, k: int, value: str) -> dict[str, Any]:
        arguments = (
            {"abutKey": value} if self.arguments == "object" else f'{{"abutKey": "{value}"}}'
        )
        call_id = message.get("tool_call_id") or f"abutCall{k}"
        return tool_call(message.get("name") or NO_NAME, arguments, call_id)


PLAIN = TurnLayout()


# In the order in which they are tried.
CALLING = tuple(
    TurnLayout(calls, arguments) for calls in ("each", "one") for arguments in ("object", "text")
)


WITH_TEMPLATE = "processor=ChatTemplateProcessor(tokenizer, chat_template=…)"
"""The way in which hints pass another template: `make_rollout_func` has no `chat_template=`."""


def roles(messages: Sequence[Message]) -> str:
    """Return the roles of messages, such as `[system, user]`."""
    return "[" + ", ".join(str(message.get("role")) for message in messages) + "]"


def quote_difference(ours: str, theirs: str) -> str:
    """Return two texts that should be equal as `'…' against '…'`.

    Each is cut to 120 characters, from 40 before the first that differs.
    """
    start = max(0, len(commonprefix([ours, theirs])) - 40)
    dots = "..." if start else ""
    return f"{dots}{ours[start : start + 120]!r} against {dots}{theirs[start : start + 120]!r}"
