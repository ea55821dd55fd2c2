"""Conversations as a page holds them, and the tree of a rollout's branches.

Invariant: the page never guesses what a message means. It shows thinking and calls only where the
engine recorded them separately; everything else is text, whatever it looks like. Text that is also
among the tokens of its row is held once: the page then has an offset into their bytes.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut.messages import Message, json_copy, with_arguments
from abut.parts import PROVENANCE

_SHORTEST_FOUND = 12
"""A string of at least so many bytes takes more room than its offset among the tokens."""
_SAMPLED = PROVENANCE.index("sampled")
_SHOWN_APART = ("role", "content", "name", "tool_calls", "reasoning_content", "reasoning")


def packed_messages(of: Mapping[str, Any], text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the messages of a rollout or a branch.

    Args:
        of: as `read_records` yields it.
        text: the bytes of its tokens.
    """
    messages = of.get("messages") or ()
    turns = _turns_by_message(of.get("turns") or (), messages)
    behind = 0
    for number, message in enumerate(messages):
        said: dict[str, Any] = {"role": plain(message.get("role"))}
        rest = {name: v for name, v in message.items() if name not in _SHOWN_APART}
        if rest:
            said["extra"] = json.dumps(json_copy(rest))
        if message.get("name"):
            said["name"] = json_copy(message["name"])
        turn, spoken = turns.get(number, (None, None))
        if turn is not None:
            said["turn"] = turn
        content = message.get("content")
        if isinstance(content, str):
            placed = _placed(content, text, behind)
            if isinstance(placed, list):
                behind = placed[0] + placed[1]
                said["at"] = placed
            else:
                said["content"] = content
        elif content is not None:
            said["blocks"] = json_copy(content)
        within = text[said["at"][0] : behind] if "at" in said else b""
        yield said | _taken_apart(spoken or message, spoken is not None, within, behind)


def _turns_by_message(
    turns: Sequence[Mapping[str, Any]], messages: Sequence[Message]
) -> dict[int, tuple[int, Mapping[str, Any] | None]]:
    """Return the number and the spoken message of each turn that has a message."""
    numbers: Sequence[int | None] = [turn.get("message") for turn in turns]
    if not any(number is not None for number in numbers):
        # An older record. The prompt may have examples, and behind it only the policy is assistant.
        answers = [k for k, message in enumerate(messages) if message.get("role") == "assistant"]
        spoken = sum(turn["end"] > turn["start"] for turn in turns)
        numbers = answers[-spoken:] if 0 < spoken <= len(answers) else []
    return {
        number: (turn, turns[turn].get("spoken"))
        for turn, number in enumerate(numbers)
        if number is not None
    }


def _taken_apart(
    message: Mapping[str, Any], is_spoken: bool, within: bytes, end: int
) -> dict[str, Any]:
    """Return the thinking, the calls and the remaining text of a message."""
    begin = end - len(within)

    def placed(name: str) -> Any:
        value = message.get(name)
        if not isinstance(value, str):
            return None
        at = _placed(value, within, 0)
        return [begin + at[0], at[1]] if isinstance(at, list) else at

    told: dict[str, Any] = {}
    if thinking := placed("reasoning_content") or placed("reasoning"):
        told["thinking"] = thinking
    if calls := message.get("tool_calls"):
        told["calls"] = [
            _call(call) for call in with_arguments({"tool_calls": calls}, "object")["tool_calls"]
        ]
    if is_spoken and told:
        told["said"] = placed("content") or ""
    return told


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    function = function if isinstance(function, Mapping) else call
    if not isinstance(function, Mapping):
        return {"name": None, "arguments": plain(function)}
    return {"name": plain(function.get("name")), "arguments": json_copy(function.get("arguments"))}


def _placed(said: str, text: bytes, behind: int) -> str | list[int]:
    """Return the offset and length of a string among bytes; the string if it is not there."""
    try:
        spoken = said.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return said
    at = text.find(spoken, behind) if len(spoken) >= _SHORTEST_FOUND else -1
    return said if at < 0 else [at, len(spoken)]


def plain(value: Any) -> Any:
    """Return a value for JSON; NaN and infinity become None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json_copy(value)


def forks(
    rows: Sequence[Mapping[str, Any]], ids: Sequence[NDArray[np.int64]]
) -> list[dict[str, int] | None]:
    """Return which conversation each one forks from, and after which turn of that conversation.

    A fork has turns of another conversation in its prompt, where their provenance is still
    `sampled`. It forks after the last of them, so the other conversation has a turn that ends
    there, and the same tokens up to there. None: it does not fork, or the record does not tell.

    Args:
        rows: the rollout's own row, and its branches.
        ids: the tokens of each, `(P + T,)` int64.
    """
    return [_fork(number, rows, ids) for number in range(len(rows))]


def _fork(
    number: int, rows: Sequence[Mapping[str, Any]], ids: Sequence[NDArray[np.int64]]
) -> dict[str, int] | None:
    prompt = rows[number].get("prompt_ids")
    provenance = rows[number].get("provenance")
    if prompt is None or provenance is None or not len(provenance):
        return None
    shared = np.flatnonzero(np.asarray(provenance)[: len(prompt)] == _SAMPLED)
    if not len(shared):
        return None
    end = int(shared[-1]) + 1
    for other, row in enumerate(rows):
        if other == number:
            continue
        for turn, one in enumerate(row.get("turns") or ()):
            if one["end"] == end and np.array_equal(ids[other][:end], ids[number][:end]):
                return {"from": other, "turn": turn}
    return None
