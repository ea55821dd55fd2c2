"""What a request repeats is not compared again, and is found to be what it was."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from abut.gateway import matching
from abut.gateway.known import Known
from abut.gateway.matching import REWRITES, Entry, History, match

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


def a_branch(turns: int, rng: random.Random | None = None) -> list[Entry]:
    """A question, then answers and results; with `rng` some say nothing and call nothing."""
    entries = [Entry({"role": "user", "content": "Why?"})]
    for number in range(turns):
        empty = rng is not None and rng.random() < 0.2
        answer = an_answer(number, "" if empty else f"text {number}", calls=not empty)
        entries.append(Entry(answer, ours=True))
        said = {"role": "user", "content": f"{number}"} if empty else a_result(number)
        history, at = History([*(entry.message for entry in entries), said]), len(entries)
        entries.append(Entry(said, answers=history.answered(at)))
    return entries


def as_sent(entries: list[Entry]) -> Messages:
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


@pytest.mark.parametrize("seed", range(60))
def test_what_is_known_changes_no_match(seed: int) -> None:
    rng = random.Random(seed)
    whole = a_branch(8, rng)
    known = Known()
    sent: list[Messages] = []
    for _ in range(25):
        entries = whole[: rng.randrange(1, len(whole) + 1)]
        known = known.first(len(entries))  # as of a fork: a branch itself only grows
        if sent and rng.random() < 0.5:
            messages = copy.deepcopy(rng.choice(sent))
            messages += as_sent(whole[len(messages) :])[: rng.randrange(4)]
        else:
            messages = as_sent(whole[: rng.randrange(1, len(whole) + 1)])
        rng.choice(CHANGES)(messages, rng.randrange(len(messages)))
        if messages:
            sent.append(messages)
            expected = match(entries, History(messages), REWRITES)
            assert match(entries, History(messages), REWRITES, known) == expected


def test_only_what_is_new_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Any] = []
    for name in ("rewrite_of", "form_of_message"):
        whole = getattr(matching, name)

        def noted(message: Any, *rest: Any, whole: Any = whole, **named: Any) -> Any:
            looked_at.append(message)
            return whole(message, *rest, **named)

        monkeypatch.setattr(matching, name, noted)
    entries, known = a_branch(100), Known()
    for entry in entries[::2]:
        assert entry.form  # which it keeps
    for end in (101, 201):
        looked_at.clear()
        found = match(entries, History(as_sent(entries[:end])), REWRITES, known)
        assert (found.entries, found.turns, found.same_ids) == (end, end // 2, end // 2)
        assert looked_at == as_sent(entries[end - 100 - (end == 101) : end])


@pytest.mark.parametrize(("known", "other"), [(1, True), (1, 1.0), ({"a": [0]}, {"a": [False]})])
def test_a_bool_is_no_known_number(known: Any, other: Any) -> None:
    beginning = Known()
    beginning.learn(0, {"role": "user", "content": "x", "n": known}, ours=False)
    assert beginning.common([{"role": "user", "content": "x", "n": copy.deepcopy(known)}]) == 1
    assert beginning.common([{"role": "user", "content": "x", "n": other}]) == 0


def test_a_message_in_another_way_is_learned_anew() -> None:
    entries, known = a_branch(3), Known()
    messages = as_sent(entries)
    match(entries, History(messages), REWRITES, known)
    assert known.common(messages) == len(entries)
    messages = as_sent(entries)
    no_text(messages, 3)
    found = match(entries, History(messages), REWRITES, known)
    assert found.rewrites == {"text_lost": 1}
    assert known.common(messages) == len(entries)
    assert known.common(as_sent(entries)) == 3
