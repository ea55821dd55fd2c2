"""What a client may do to an answer of the policy without saying another thing.

Each habit takes an answer as it came and gives it back as some client writes it.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.kit.clients.tree import Item, Message, Node, answered

Habit = Callable[[Node, random.Random], tuple[Message | None, Item] | None]
"""The message, None where it is left out, and what it stands for; None: it does not apply."""


def own(node: Node) -> Message:
    """An answer as it came, in an object of its own."""
    message: Message = json.loads(json.dumps(node.answer))
    return message


def verbatim(node: Node, rng: random.Random) -> tuple[Message | None, Item] | None:
    return own(node), answered(node, reasoning=True)


def rewritten(node: Node, rng: random.Random) -> tuple[Message | None, Item] | None:
    """Rules 1, 2, 3 and 5: the same, written in another way."""
    message = own(node)
    reasoning = other_reasoning(message, rng)
    other_content(message, rng)
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = other_arguments(call["function"]["arguments"], rng)
        call.update(rng.choice([{}, {"index": 0}]))
    for key in ("refusal", "audio", "function_call", "parsed", "annotations"):
        if rng.random() < 0.3:
            message[key] = rng.choice([None, "" if key == "refusal" else []])
    if rng.random() < 0.3:
        message["provider_specific_fields"] = {"a": [1]}
    for key in ("prompt_token_ids", "generation_token_ids", "generation_log_probs"):
        if rng.random() < 0.3:
            message[key] = rng.choice([None, [1, 2]])  # of another turn, or of none
    if not message.get("tool_calls") and rng.random() < 0.5:
        message["tool_calls"] = rng.choice([None, []])
    return message, answered(node, reasoning=reasoning)


def other_reasoning(message: Message, rng: random.Random) -> bool:
    """Write its thinking in another way; returns whether some is left."""
    thought = message.get("reasoning")
    for key in ("reasoning", "reasoning_content"):
        others = [..., None, ""] + ([thought, f" {thought}\n"] if thought else [])
        new = rng.choice(others)
        if new is ...:
            message.pop(key, None)
        else:
            message[key] = new
    return any(message.get(key) for key in ("reasoning", "reasoning_content"))


def other_content(message: Message, rng: random.Random) -> None:
    """Write its text in another way."""
    text = message["content"] or ""
    ways: list[Any] = [text, text.strip(), f"\n {text}  ", [{"type": "text", "text": text}]]
    middle = len(text) // 2
    ways.append([{"type": "text", "text": part} for part in (text[:middle], text[middle:])])
    if not text.strip():
        ways += [None, "", [], ...]
    new = rng.choice(ways)
    if new is ...:
        del message["content"]
    else:
        message["content"] = new


def other_arguments(text: str, rng: random.Random) -> Any:
    """The same arguments, written in another way."""
    value = json.loads(text)
    if not value and rng.random() < 0.5:
        return rng.choice(["", None, {}, " {} "])
    value = _other_numbers(value, rng)
    if rng.random() < 0.5:
        value = dict(reversed(value.items()))
    way = rng.randrange(5)
    if way == 0:
        return value
    if way == 1 and "b" in value:  # of two equal keys the last one counts
        return '{"b": "before", ' + json.dumps(value, indent=1)[1:]
    return json.dumps(
        value,
        ensure_ascii=way == 2,
        separators=(",", ":") if way == 3 else None,
        sort_keys=way == 4,
    )


def _other_numbers(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        return {key: _other_numbers(item, rng) for key, item in value.items()}
    if isinstance(value, list):
        return [_other_numbers(item, rng) for item in value]
    if isinstance(value, bool) or rng.random() < 0.5:
        return value
    if isinstance(value, int):
        return float(value)  # all that the policy says are exact
    if isinstance(value, float) and value == value and value.is_integer():
        return int(value)
    return value


def text_lost(node: Node, rng: random.Random) -> tuple[Message | None, Item] | None:
    """Rule 6."""
    if not node.answer.get("tool_calls"):
        return None
    return own(node) | {"content": rng.choice([None, "", " "])}, answered(node)


def stop_put_back(node: Node, rng: random.Random) -> tuple[Message | None, Item] | None:
    """Rule 7."""
    if not node.stops:
        return None
    stop = rng.choice(list(node.stops))
    message = own(node)
    message["content"] = (message["content"] or "") + stop
    return message, answered(node, stop=stop, reasoning=True)


def calls_as_text(node: Node, rng: random.Random) -> tuple[Message | None, Item] | None:
    """Rule 8."""
    if not node.answer.get("tool_calls"):
        return None
    message = own(node)
    del message["tool_calls"]
    message["content"] = as_text(node)
    return message, answered(node)


def as_text(node: Node, **changed: Any) -> str:
    """How an agent writes calls into the text; the first one with these changes."""
    calls = []
    for number, call in enumerate(node.answer["tool_calls"]):
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        calls.append(
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            | ({} if number else changed)
        )
    text = (node.answer["content"] or "").strip()
    return f"{text}\nCalling tools:\n{calls!r}".strip()


def code_again(node: Node, rng: random.Random) -> tuple[Message | None, Item] | None:
    """Rule 9."""
    if node.is_blank or node.answer.get("tool_calls"):
        return None
    stop = rng.choice(["", *node.stops])
    message = own(node)
    message["content"] = with_code(node, stop)
    return message, answered(node)


def with_code(
    node: Node, stop: str = "", *, code: str | None = None, id_: str = "call_3", times: int = 1
) -> str:
    """How an agent repeats the code of a text as a call."""
    whole = (node.answer["content"] + stop).strip()
    code = whole[len(whole) // 3 :] if code is None else code
    function = {"name": "python_interpreter", "arguments": code}
    return f"{whole}\nCalling tools:\n" + repr(
        [{"id": id_, "type": "function", "function": function}] * times
    )


def left_out(node: Node, rng: random.Random) -> tuple[Message | None, Item] | None:
    """Rule 10."""
    return (None, answered(node)) if node.is_blank else None


HABITS: tuple[Habit, ...] = (verbatim, rewritten, rewritten, text_lost, stop_put_back)
HABITS += (calls_as_text, code_again, left_out)
NEEDS_IDS = (text_lost, calls_as_text)
"""They hold only where ids are the gateway's."""


def compose(
    node: Node | None,
    rng: random.Random,
    *,
    plainly: bool = False,
    habits: Sequence[Habit] = HABITS,
) -> tuple[list[Message], list[Item], dict[str, str]]:
    """What a client sends of the conversation up to an answer, its items, and its names for ids."""
    messages: list[Message] = []
    items: list[Item] = []
    path = node.path if node else []
    renames = not plainly and rng.random() < 0.3
    for place, step in enumerate(path):
        messages += json.loads(json.dumps(step.said))
        items += step.items
        here = (verbatim,) if plainly else habits
        if renames or _has_results(step, path[place + 1 :]):
            here = tuple(habit for habit in here if habit not in NEEDS_IDS)
        if renames:
            here = tuple(habit for habit in here if habit.__name__ != "arguments_read")
        done = rng.choice(here)(step, rng) or verbatim(step, rng)
        assert done is not None
        if done[0] is not None:
            messages.append(done[0])
            items.append(done[1])
    names: dict[str, str] = {}
    ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    if renames and len(ids) == len({*ids}):  # an id of two calls is of none, and counts as it is
        rename(messages, names)
    return messages, items, names


def _has_results(node: Node, later: Sequence[Node]) -> bool:
    results = {message.get("tool_call_id") for other in later for message in other.said}
    return any(call["id"] in results for call in node.answer.get("tool_calls", ()))


def rename(messages: Sequence[Message], names: dict[str, str], *, known: bool = False) -> None:
    """Give each call another id, and each result the id of its call.

    Args:
        messages: changed in place.
        names: of ids; new ones are added, unless only `known` ones are changed.
    """
    for message in messages:
        is_answer = message["role"] == "assistant"
        for call in (is_answer and message.get("tool_calls")) or ():
            if not known:
                names.setdefault(call["id"], f"id_{len(names)}")
            call["id"] = names.get(call["id"], call["id"])
        rename(message.get("pieces", ()), names, known=known)
        if message["role"] == "tool" and (id_ := message.get("tool_call_id")) in names:
            message["tool_call_id"] = names[id_]
