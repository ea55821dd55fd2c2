"""Branches of a rollout for tests, what a client sends back of them, and how it may change that."""

import copy
import random
from collections.abc import Callable
from typing import Any

from abut.gateway.dialects.chat import Chat
from abut.gateway.ledger.entry import BranchEntry
from abut.gateway.ledger.matching import History

Messages = list[dict[str, Any]]


def an_answer(number: int, text: str = "", *, calls: int = 1) -> dict[str, Any]:
    made = [
        {
            "id": f"call{number}x{k}",
            "type": "function",
            "function": {"name": "look", "arguments": f'{{"a": {number}}}'},
        }
        for k in range(calls)
    ]
    answer: dict[str, Any] = {"role": "assistant", "content": text}
    return {**answer, "tool_calls": made} if made else answer


def a_result(number: int, text: str = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call{number}x0", "content": text}


def a_branch(turns: int, rng: random.Random | None = None) -> list[BranchEntry]:
    """A question, then answers and results; with `rng` some say nothing and call nothing."""
    entries = [BranchEntry({"role": "user", "content": "Why?"})]
    for number in range(turns):
        empty = rng is not None and rng.random() < 0.2
        answer = an_answer(number, "" if empty else f"text {number}", calls=not empty)
        entries.append(BranchEntry(answer, ours=True, dialect=Chat()))
        said = {"role": "user", "content": f"{number}"} if empty else a_result(number)
        history, at = History([*(entry.message for entry in entries), said]), len(entries)
        entries.append(BranchEntry(said, answered_call=history.call_of(at)))
    return entries


def as_sent(entries: list[BranchEntry]) -> Messages:
    """What a client sends back, every value an object of its own."""
    return copy.deepcopy([entry.message for entry in entries])


def another_id(messages: Messages, place: int) -> None:
    text = repr(messages[place].get("tool_calls", [{}])[0].get("id"))
    for message in messages[place:]:
        for call in message.get("tool_calls", []):
            call["id"] = "own" if repr(call["id"]) == text else call["id"]
        if repr(message.get("tool_call_id")) == text:
            message["tool_call_id"] = "own"


def arguments_as_object(messages: Messages, place: int) -> None:
    for call in messages[place].get("tool_calls", []):
        call["function"]["arguments"] = {"a": int(call["function"]["arguments"][6:-1])}


def arguments_as_bool(messages: Messages, place: int) -> None:
    for call in messages[place].get("tool_calls", []):
        call["function"]["arguments"] = {"a": True}


def no_text(messages: Messages, place: int) -> None:
    messages[place]["content"] = None


def left_out(messages: Messages, place: int) -> None:
    del messages[place]


def tokens(messages: Messages, place: int) -> None:
    messages[place]["generation_token_ids"] = [1, 2]


def nothing(messages: Messages, place: int) -> None:
    return


CHANGES: list[Callable[[Messages, int], None]] = [
    another_id, arguments_as_object, arguments_as_bool, no_text, left_out, tokens, nothing, nothing,
]  # fmt: skip
