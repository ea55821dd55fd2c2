"""The interface of a spelling: how the clients of one protocol write what a chat client would say.

Random clients say messages of a chat, with one key more: `handle`, the name of an answer's
reasoning. A spelling takes what its protocol can say of them, writes a body, and reads the answer
back into such a message. What it draws at random says nothing: a protocol's own freedom.
"""

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from abut.gateway.dialects.chat import Chat
from abut.gateway.dialects.dialect import HttpDialect
from tests.kit.clients.habits import (
    HABITS,
    Habit,
    left_out,
    other_arguments,
    other_content,
    other_reasoning,
    own,
    rename,
    verbatim,
)
from tests.kit.clients.tree import Item, Message, Node, answered, said

Said = tuple[list[Message], list[Item]]


class Spelling:
    """How chat clients write: as they say it. The spellings of other protocols differ from it."""

    dialect: ClassVar[HttpDialect] = Chat()
    habits: ClassVar[Sequence[Habit]] = HABITS
    has_stops: ClassVar[bool] = True
    follows: ClassVar[bool] = False
    """Whether a request may name the answer that it follows, instead of repeating its history."""
    shuffles: ClassVar[float] = 1.0
    """How often results come in any order; else they are in that of their calls."""
    system_later: ClassVar[bool] = False
    """Whether a system message may stand behind the first message, and is shown as such."""

    def normal(
        self, messages: Sequence[Message], items: Sequence[Item | None], names: Mapping[str, str]
    ) -> Said | None:
        """The messages as the protocol has them, and their items; None where it cannot say them.

        Args:
            messages: of a client.
            items: of them; None stands for the item of a message that is said as it is.
            names: of the client's ids of calls, the ids that they were before.
        """
        return [*messages], _resolved(messages, items, names)

    def body(self, chat: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        """The body of a request whose messages are normal."""
        return {**chat}

    def heard(self, answer: Any) -> Message:
        """The message of an answer."""
        message: Message = answer["choices"][0]["message"]
        return message

    def assembled(self, events: Sequence[Any]) -> Any:
        """The answer that a stream makes; what only a whole one has is None."""
        message: Message = {"content": None}
        choice: dict[str, Any] = {"index": 0, "message": message}
        for event in events:
            for chunk in event["choices"]:
                for key, value in chunk["delta"].items():
                    if key == "tool_calls":
                        (call,) = value
                        calls = message.setdefault(key, [])
                        assert call.pop("index") == len(calls)
                        calls.append(call)
                    elif key.endswith("_ids") or key.endswith("_probs") or key == "role":
                        message[key] = value
                    else:
                        message[key] = (message.get(key) or "") + value
                choice["finish_reason"] = chunk["finish_reason"]
        return choice

    def whole(self, answer: Any) -> Any:
        """The part of a whole answer that its stream must make."""
        (choice,) = answer["choices"]
        message = {**choice["message"], "content": choice["message"]["content"] or ""}
        return {"index": 0, "message": message, "finish_reason": choice["finish_reason"]}

    def edits(self, node: Node, message: Message) -> Iterator[tuple[str, Message]]:
        """Other answers than this one, beside those that a chat client can make of it."""
        return iter(())

    def is_same(self, messages: Sequence[Message], edited: Sequence[Message]) -> bool:
        """Whether an edit is none in this protocol."""
        return as_json(messages) == as_json(edited)


class OtherSpelling(Spelling, ABC):
    """A spelling of another protocol."""

    shuffles = 0.5
    merges: ClassVar[bool] = False
    """Whether neighbouring messages of the assistant are one turn."""
    signs_once: ClassVar[bool] = False
    """Whether a handle that is there twice is one."""

    def normal(
        self, messages: Sequence[Message], items: Sequence[Item | None], names: Mapping[str, str]
    ) -> Said | None:
        pairs: list[tuple[Message, Item | None]] = []
        tools: dict[str, str] = {}
        for message, item in zip(messages, items, strict=True):
            is_answer = message["role"] == "assistant"
            new = self._answer(message) if is_answer else self._said(message, tools)
            if new is None or (new["role"] == "system" and not self._takes_system(len(pairs))):
                return None
            item = None if item == said(message) else item
            for call in new.get("tool_calls", ()):
                tools[call["id"]] = call["function"]["name"]
            if is_answer and not self._is_written(new):
                continue
            if self.merges and is_answer and pairs and pairs[-1][0]["role"] == "assistant":
                pairs[-1] = _merged(*pairs[-1], new, item, once=self.signs_once)
            else:
                pairs.append((new, item))
        if not pairs[1 if pairs and pairs[0][0]["role"] == "system" else 0 :]:
            return None
        normal = [message for message, _ in pairs]
        return normal, _resolved(normal, [item for _, item in pairs], names)

    def _takes_system(self, place: int) -> bool:
        return place == 0 or self.system_later

    def _is_written(self, message: Message) -> bool:
        """Whether anything is sent for an answer."""
        return True

    def _answer(self, message: Message) -> Message | None:
        if "pieces" in message:  # nothing but these can be written
            one, *more = message["pieces"]
            for two in more:
                one, _ = _merged(one, None, two, None, once=self.signs_once)
            return message if as_json(one) == as_json(message) else None
        if any(message.get(key) for key in ("audio", "function_call", "refusal")):
            return None
        thoughts = self._thoughts(message)
        if not all(isinstance(thought, str) for thought in thoughts.values()):
            return None
        new: Message = {"role": "assistant", "content": _joined(message.get("content"))}
        new |= {key: thought for key, thought in thoughts.items() if thought}
        new |= {key: message[key] for key in ("handle", "respelled") if message.get(key)}
        if calls := message.get("tool_calls"):
            new["tool_calls"] = [_call(call, self.arguments) for call in calls]
        if message.get("reordered"):
            if not (new["content"] and calls):
                return None
            new["reordered"] = True
        return new

    def _thoughts(self, message: Message) -> dict[str, Any]:
        """The thinking, where the protocol has one text of it."""
        thought = message.get("reasoning") or message.get("reasoning_content") or ""
        return {"reasoning_content": thought}

    def arguments(self, arguments: Any) -> Any:
        """The arguments of a call as the protocol has them: an object, or a text that is none."""
        if isinstance(arguments, str) and arguments.strip():
            try:
                read = json.loads(arguments)
            except ValueError:
                return arguments
            return read if isinstance(read, dict) else arguments
        return arguments if isinstance(arguments, dict) else {}

    def _said(self, message: Message, tools: Mapping[str, str]) -> Message | None:
        content = message.get("content")
        if isinstance(content, list):
            content = content if len(content) > 1 else _joined(content)
        new: Message = {"role": message["role"], "content": content or ""}
        if new["role"] == "developer":
            return None
        if new["role"] == "tool":
            if not isinstance(message.get("tool_call_id"), str):
                return None
            new["tool_call_id"] = message["tool_call_id"]
        return new

    def edits(self, node: Node, message: Message) -> Iterator[tuple[str, Message]]:
        if message.get("content") and message.get("tool_calls"):
            yield "text behind calls", message | {"reordered": True}
        yield "handle of nobody", message | {"handle": "abut.99999"}
        if message.get("handle"):
            bare = {k: v for k, v in message.items() if not k.startswith("reasoning")}
            yield "handle alone, of nobody", bare | {"handle": "abut.99999"}
            yield "handle goes on", message | {"handle": f"{message['handle']}0"}

    @abstractmethod
    def body(self, chat: Mapping[str, Any], rng: random.Random) -> dict[str, Any]: ...


def respelled(node: Node, rng: random.Random) -> tuple[Message | None, Item] | None:
    """The same answer: its thinking or the name of it left out, its text and numbers otherwise."""
    message = own(node)
    has_thinking = other_reasoning(message, rng)
    if rng.random() < 0.4:
        message.pop("handle", None)
    other_content(message, rng)
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = other_arguments(call["function"]["arguments"], rng)
    return message, answered(node, reasoning=has_thinking or "handle" in message)


def as_json(value: Any) -> str:
    """A value as text: to Python, `True` is 1."""
    return json.dumps(value, sort_keys=True)


OTHER_HABITS: tuple[Habit, ...] = (verbatim, respelled, respelled, left_out)


def function_call(id_: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call as a chat has it."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def texts(content: Any) -> list[str]:
    """The texts of a content."""
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _joined(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def _call(call: Any, arguments: Any) -> Any:
    function = call["function"]
    return function_call(call["id"], function["name"], arguments(function["arguments"]))


def _merged(
    one: Message, its: Item | None, two: Message, other: Item | None, *, once: bool
) -> tuple[Message, Item | None]:
    """Two messages of the assistant as one; it is an answer if the other says nothing."""
    new = {**one, "content": one["content"] + two["content"]}
    nothing = [(_says_nothing(one), other), (_says_nothing(two), its)]
    new["pieces"] = [*one.get("pieces", [one]), *two.get("pieces", [two])]
    if two.get("respelled") and (one["content"] or one.get("tool_calls")):
        thought = f"<think>\n{two['reasoning_content']}\n</think>"  # no answer begins there
        new["content"] = one["content"] + thought + two["content"]
        two = {k: v for k, v in two.items() if k not in ("respelled", "reasoning_content")}
    for key in ("reasoning_content", "reasoning", "tool_calls", "refusal"):
        if one.get(key) or two.get(key):
            new[key] = (one.get(key) or type(two[key])()) + (two.get(key) or type(one[key])())
    if handles := [message["handle"] for message in (one, two) if message.get("handle")]:
        is_once = once and handles[0] == handles[-1]
        new["handle"] = handles[0] if is_once else " ".join(handles)
    if _last(one) > _first(two) or one.get("reordered") or two.get("reordered"):
        new["reordered"] = True
    if two.get("respelled"):
        new["respelled"] = True
    for says_nothing, item in nothing:
        if says_nothing and item is not None and item[0] != "said":
            return new, None if new.get("reordered") else item
    return new, None


def _says_nothing(message: Message) -> bool:
    keys = {key for key, value in message.items() if value} - {"pieces"}
    return keys <= {"role", "content"} and not message["content"].strip()


def _kinds(message: Message) -> list[int]:
    thinking = message.get("reasoning_content") or message.get("reasoning")
    said = (thinking, message["content"] or message.get("refusal"), message.get("tool_calls"))
    return [kind for kind, one in enumerate(said) if one]


def _first(message: Message) -> int:
    return min(_kinds(message), default=2)


def _last(message: Message) -> int:
    return max(_kinds(message), default=0)


def _resolved(
    messages: Sequence[Message], items: Sequence[Item | None], names: Mapping[str, str]
) -> list[Item]:
    known: list[Message] = json.loads(json.dumps(messages))
    rename(known, dict(names), known=True)
    return [
        said(message) if item is None else item for message, item in zip(known, items, strict=True)
    ]
