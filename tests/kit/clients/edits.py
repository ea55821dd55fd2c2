"""What is no longer the history that was said: each edit makes another conversation of it."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from tests.kit.clients.habits import as_text, own, with_code
from tests.kit.clients.random_policy import STOPS
from tests.kit.clients.tree import Item, Message, Node, said

Edited = tuple[str, list[Message], list[Item]]
OtherAnswers = Callable[[Node, Message], Iterator[tuple[str, Message]]]
OTHER_VALUES: tuple[Any, ...] = (0, 1, True, False, None, "", "1", "true", [], {}, 0.5, [1], "x")


def edits(
    messages: Sequence[Message],
    items: Sequence[Item],
    nodes: Sequence[Node],
    rng: random.Random,
    others_of: OtherAnswers,
) -> Iterator[Edited]:
    """Edits of a history as it was said, one message for one item.

    Args:
        messages: of it.
        items: what they stand for.
        nodes: the answers among them, in their order.
        rng: chooses letters and places.
        others_of: more edits of an answer, in its protocol.
    """
    answers, end = {}, -1
    for node in nodes:
        end += len(node.said) + 1
        answers[end] = node
    for place, message in enumerate(messages):
        node = answers.get(place)
        is_said = items[place][0] == "said"
        others: Iterator[tuple[str, Message]]
        if node:
            others = chain(_of_answer(node, rng), others_of(node, own(node)))
        else:
            others = _of_said(message, rng, is_said=is_said)
        for name, other in others:
            if other != message:
                yield name, *_with(messages, items, place, [(other, said(other))])
        yield from _of_order(messages, items, place, node)
        if node:
            yield from _of_ids(messages, items, place)


def _with(
    messages: Sequence[Message],
    items: Sequence[Item],
    place: int,
    new: Sequence[tuple[Message, Item]],
    end: int | None = None,
) -> tuple[list[Message], list[Item]]:
    """The history with other messages from `place` to `end`."""
    end = place + 1 if end is None else end
    return (
        [*messages[:place], *[message for message, _ in new], *messages[end:]],
        [*items[:place], *[item for _, item in new], *items[end:]],
    )


def some(edited: Iterator[Edited], count: int, rng: random.Random) -> list[Edited]:
    """So many edits: one of each kind before a second one of any."""
    every = list(edited)
    rng.shuffle(every)
    seen: Counter[str] = Counter()
    ranked = []
    for one in every:
        ranked.append((seen[one[0]], one))
        seen[one[0]] += 1
    ranked.sort(key=lambda pair: pair[0])
    return [one for _, one in ranked[:count]]


def _of_ids(messages: Sequence[Message], items: Sequence[Item], place: int) -> Iterator[Edited]:
    """The calls get other ids, and their results do not."""
    calls = messages[place].get("tool_calls") or []
    ids = {call["id"] for call in calls}
    lost = [k for k, message in enumerate(messages) if message.get("tool_call_id") in ids]
    if lost:
        stale = [{**call, "id": f"stale_{k}"} for k, call in enumerate(calls)]
        new = [(messages[place] | {"tool_calls": stale}, items[place])]
        others, other_items = _with(messages, items, place, new)
        for k in lost:
            other_items[k] = said({"role": "tool", "content": "a result of no call"})
        yield "ids of calls", others, other_items


def _of_order(
    messages: Sequence[Message], items: Sequence[Item], place: int, node: Node | None
) -> Iterator[Edited]:
    here = (messages[place], items[place])
    inserted = {"role": "user", "content": "inserted"}
    yield "inserted", *_with(messages, items, place, [(inserted, said(inserted)), here])
    forged = {"role": "assistant", "content": "forged"}
    yield "forged before", *_with(messages, items, place, [(forged, said(forged)), here])
    if node is None or not node.is_blank:
        yield "dropped", *_with(messages, items, place, [])
        yield "said twice", *_with(messages, items, place, [here, here])
    if place + 1 < len(messages) and messages[place] != messages[place + 1]:
        after = (messages[place + 1], items[place + 1])
        yield "order", *_with(messages, items, place, [after, here], place + 2)
        if messages[place]["role"] == messages[place + 1]["role"] == "tool":
            yield from _of_results(messages, items, place)


def _of_results(messages: Sequence[Message], items: Sequence[Item], place: int) -> Iterator[Edited]:
    """Two results beside each other, exchanged in part."""
    for key in ("content", "tool_call_id"):
        one, two = dict(messages[place]), dict(messages[place + 1])
        one[key], two[key] = two.get(key), one.get(key)
        if one[key] != two[key]:
            new = [(one, said(one)), (two, said(two))]
            yield f"{key} exchanged", *_with(messages, items, place, new, place + 2)


NEVER_BACK = ("letter", "inserted", "before", "behind")
"""Of an answer that was edited these never make again what it was."""


def _of_said(
    message: Message, rng: random.Random, *, is_said: bool
) -> Iterator[tuple[str, Message]]:
    """Another message of the client, or an answer that is written anew."""
    text = message.get("content")
    if isinstance(text, str):
        for name, new in _of_text(text, rng):
            if message["role"] != "assistant" or name in NEVER_BACK:
                yield f"said: {name}", message | {"content": new}
    if not is_said:
        return
    if isinstance(text, str):  # white space counts
        for name, new in (("before", f" {text}"), ("behind", f"{text}\n"), ("", text.strip())):
            yield f"said: space {name}", message | {"content": new}
        parts = [{"type": "text", "text": part} for part in (text, "")]
        yield "said: parts", message | {"content": parts}
    role = rng.choice([r for r in ("user", "system", "developer") if r != message["role"]])
    yield "said: role", message | {"role": role}
    yield "said: name", message | {"name": "other"}
    if message["role"] == "tool":
        yield "said: stale id", message | {"tool_call_id": "stale"}
        yield "said: no id", {k: v for k, v in message.items() if k != "tool_call_id"}
    if message["role"] == "assistant":
        yield "said: refusal", message | {"refusal": "no"}
        yield "said: thinking", message | {"reasoning_content": "other"}


def _of_text(text: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    stripped = text.strip()
    if not stripped:
        return
    begin = text.index(stripped)
    places = range(begin, begin + len(stripped))
    for place in rng.sample(places, min(len(places), 3)):
        if not text[place].isspace():
            new = "X" if text[place] != "X" else "Y"
            yield "letter", text[:place] + new + text[place + 1 :]
            yield "letter gone", text[:place] + "\N{ZERO WIDTH SPACE}" + text[place + 1 :]
        yield "inserted", text[:place] + "'" + text[place:]
    yield "behind", f"{stripped}'"
    yield "before", f"'{stripped}"
    yield "zero width", f"{stripped}\N{ZERO WIDTH SPACE}"
    if len(stripped) > 3:
        yield "cut", stripped[: len(stripped) // 2]
        yield "end alone", stripped[len(stripped) // 2 :]
    for space in " ", "\n":
        if space in stripped:
            yield "space doubled", text.replace(stripped, stripped.replace(space, space * 2, 1))
            yield "space gone", text.replace(stripped, stripped.replace(space, "", 1))
            yield "other space", text.replace(stripped, stripped.replace(space, "\t", 1))
    if stripped.swapcase() != stripped:
        yield "case", text.swapcase()


def _of_answer(node: Node, rng: random.Random) -> Iterator[tuple[str, Message]]:
    """Another answer than that."""
    message = own(node)
    text = message["content"] or ""
    for name, new in _of_text(text, rng):
        yield name, message | {"content": new}
        yield f"{name}, bare", _bare(message) | {"content": new}
    yield "thinking pasted", message | {"content": f"<think>\nno\n</think>\n\n{text}"}
    yield from _of_thinking(message)
    for key, value in (("refusal", "no"), ("audio", {"id": "a"}), ("function_call", {"name": "f"})):
        yield key, message | {key: value}
    if not (node.is_blank):
        yield "role", message | {"role": rng.choice(["user", "system", "developer", "tool"])}
    if text.strip() and not message.get("tool_calls"):
        yield "emptied", message | {"content": ""}
        yield "call added", message | {"tool_calls": [_a_call("lookup")]}
    if node.is_blank:
        yield "filled", message | {"content": "filled"}
    yield from _of_stops(node, message, text)
    yield from _of_calls(node, message, rng)


def _bare(message: Message) -> Message:
    """Without what many clients leave out."""
    return {k: message[k] for k in message if k != "handle" and not k.startswith("reasoning")}


def _of_thinking(message: Message) -> Iterator[tuple[str, Message]]:
    thought = message.get("reasoning")
    for key in "reasoning", "reasoning_content":
        yield f"other {key}", message | {key: "other"}
        yield f"{key} is no text", message | {key: [thought]}
        if thought:
            yield f"{key} goes on", message | {key: f"{thought}'"}


def _of_stops(node: Node, message: Message, text: str) -> Iterator[tuple[str, Message]]:
    """What rules 7 and 9 do not allow."""
    for stop in STOPS:
        if stop not in node.stops:
            yield "stop of another", message | {"content": text + stop}
    for stop in node.stops:
        yield "stop twice", message | {"content": text + stop + stop}
        if text.strip():
            yield "stop before", message | {"content": stop + text}
    if node.is_blank or message.get("tool_calls"):
        return
    line = with_code(node)
    head, _, calls = line.rpartition("\n")
    for name, new in (
        ("other code", with_code(node, code="print('other')")),
        ("no code", with_code(node, code=" ")),
        ("code of another id", with_code(node, id_="code_3")),
        ("code with no number", with_code(node, id_="call_")),
        ("code twice", with_code(node, times=2)),
        ("code as JSON", f"{head}\n{calls}".replace("'", '"')),
        ("code spaced", f"{head}\n{calls}".replace("[{", "[ {")),
        ("code by another", line.replace("python_interpreter", "final_answer")),
        ("code goes on", f"{line}'"),
        ("code alone", calls),
    ):
        yield name, message | {"content": new}


def _of_calls(node: Node, message: Message, rng: random.Random) -> Iterator[tuple[str, Message]]:
    calls = message.get("tool_calls", [])

    def having(new: Any) -> Message:
        return message | {"tool_calls": new}

    if not calls:
        return
    yield "no calls", having([])
    yield "calls only counted", having([*calls[1:], _a_call("other")])
    yield "call said twice", having([*calls, calls[0]])
    yield "call added", having([*calls, _a_call("lookup")])
    yield (
        "text lost and ids",
        having([{**call, "id": "stale"} for call in calls])
        | ({"content": None if (message["content"] or "").strip() else "text"}),
    )
    if len(calls) > 1:
        yield "call dropped", having(calls[:-1])
        if not _same_call(calls[0], calls[-1]):
            yield "calls reversed", having(calls[::-1])
    for name, function in _of_function(calls[0]["function"], rng):
        other = [{**calls[0], "function": function}, *calls[1:]]
        yield name, having(other)
        yield f"{name}, text lost", having(other) | {"content": None}
    bare = {key: value for key, value in message.items() if key != "tool_calls"}
    yield "as text, other id", bare | {"content": as_text(node, id="call_9")}
    yield "as text, other kind", bare | {"content": as_text(node, type="tool")}
    yield "as text goes on", bare | {"content": f"{as_text(node)}'"}
    yield "as text and calls", message | {"content": as_text(node)}


def _of_function(function: Any, rng: random.Random) -> Iterator[tuple[str, Any]]:
    value = json.loads(function["arguments"])

    def having(new: Any) -> Any:
        return {**function, "arguments": json.dumps(new)}

    yield "renamed", {**function, "name": function["name"] + "_"}
    yield "argument added", having({**value, "new": None})
    yield "arguments are no JSON", {**function, "arguments": function["arguments"] + "'"}
    yield "arguments are a list", having([value])
    yield "arguments are text", having(function["arguments"])
    yield "arguments wrapped", having({"INVALID_JSON": function["arguments"]})
    for key, item in value.items():
        yield "argument dropped", having({k: v for k, v in value.items() if k != key})
        yield "argument renamed", having({k + "_" * (k == key): v for k, v in value.items()})
        others = [*OTHER_VALUES, [item], json.dumps(item)]
        if isinstance(item, str):
            others += [f"{item} ", item.strip(), item.upper()]
        if isinstance(item, dict | list) and item:
            others += [{**item, "new": 1} if isinstance(item, dict) else item[::-1]]
            others += [_with_bools_as_numbers(item)]
        for other in others:
            if not same(item, other):
                yield f"{item!r} is {other!r}", having({**value, key: other})


def _with_bools_as_numbers(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list):
        return [_with_bools_as_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_bools_as_numbers(item) for key, item in value.items()}
    return value


def same(one: Any, two: Any) -> bool:
    """Whether two JSON values say the same."""
    if isinstance(one, bool) or isinstance(two, bool) or one is None or two is None:
        return one is two
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two) or (one != one and two != two)


def _same_call(one: Any, two: Any) -> bool:
    a, b = one["function"], two["function"]
    return a["name"] == b["name"] and same(json.loads(a["arguments"]), json.loads(b["arguments"]))


def _a_call(name: str) -> Any:
    return {"id": "new", "type": "function", "function": {"name": name, "arguments": "{}"}}
