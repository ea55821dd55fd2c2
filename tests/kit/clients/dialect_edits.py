"""Edits of a body in its dialect's own JSON: none of them may be taken for what was said."""

import copy
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, TypeAlias

Path: TypeAlias = tuple[Any, ...]

# Nothing that a policy sees: marks, labels, and what stands for reasoning.
NOTHING = {
    *("cache_control", "id", "status", "annotations", "logprobs", "phase", "caller", "is_error"),
    *("citations", "toolset_name", "signature", "thoughtSignature", "encrypted_content"),
}
# Ids say which call is meant; what changes in them alone is tried elsewhere.
_IDS = {"type", "role", "tool_use_id", "call_id", "tool_name"}
_TEXTS = {"text", "content", "thinking", "output", "input", "arguments", "command", "cmd"}
_ARGUMENTS = {"input", "args", "arguments"}
_ROLES = {"user": "assistant", "assistant": "user", "model": "user", "developer": "user"}


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The texts, numbers and constants in a JSON value, each with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in NOTHING:
                yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    elif value is not None:
        yield path, value


def edited(items: Sequence[Any], count: int, random: Random) -> Iterator[tuple[str, list[Any]]]:
    """Yield so many edits of items, each with its kind."""
    found = [leaf for leaf in leaves(items) if leaf[0][-1] not in _IDS]
    kinds = [kind for kind in _KINDS if kind[1](items, found)]
    for _ in range(count):
        name, _, edit = random.choice(kinds)
        other = copy.deepcopy(list(items))
        what = edit(other, found, random)
        if what is not None and json.dumps(other) != json.dumps(items):
            yield f"{name} {what}".strip(), other


def _put(items: Any, path: Path, value: Any) -> None:
    *way, last = path
    for key in way:
        items = items[key]
    items[last] = value


def _texts(found: Any) -> list[tuple[Path, str]]:
    return [
        (path, text)
        for path, text in found
        if isinstance(text, str) and len(text.strip()) > 3 and path[-1] in _TEXTS
    ]


def _values(found: Any) -> list[tuple[Path, Any]]:
    return [(path, value) for path, value in found if _ARGUMENTS & {*path[:-1]}]


def _names(found: Any) -> list[tuple[Path, Any]]:
    return [(path, value) for path, value in found if path[-1] == "name"]


def _letter(items: Any, found: Any, random: Random) -> str:
    path, text = random.choice(_texts(found))
    inner = [k for k, letter in enumerate(text) if not letter.isspace()]
    at = random.choice(inner)
    _put(items, path, text[:at] + ("q" if text[at] != "q" else "z") + text[at + 1 :])
    return str(path[-1])


def _space(items: Any, found: Any, random: Random) -> str | None:
    path, text = random.choice(_texts(found))
    start = len(text) - len(text.lstrip())
    at = random.randrange(start + 1, len(text.rstrip()))
    other = text[:at] + " " + text[at:]
    _put(items, path, other)
    return None if path[-1] == "arguments" and _same_json(text, other) else str(path[-1])


def _same_json(one: str, other: str) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def _cut(items: Any, found: Any, random: Random) -> str:
    path, text = random.choice(_texts(found))
    _put(items, path, text.rstrip()[:-1])
    return str(path[-1])


def _value(items: Any, found: Any, random: Random) -> str:
    path, value = random.choice(_values(found))
    others: list[Any] = [None, [], {}, "", "x", True, 1]
    if isinstance(value, bool):
        others = [int(value), not value, str(value)]
    elif isinstance(value, int | float):
        others = [value + 1, str(value)]
    other = random.choice([one for one in others if json.dumps(one) != json.dumps(value)])
    _put(items, path, other)
    return ""


def _name(items: Any, found: Any, random: Random) -> str:
    path, value = random.choice(_names(found))
    _put(items, path, f"{value}x")
    return ""


def _role(items: Any, found: Any, random: Random) -> str:
    place = random.choice([k for k, item in enumerate(items) if item.get("role") in _ROLES])
    items[place]["role"] = _ROLES[items[place]["role"]]
    return ""


def _drop(items: Any, found: Any, random: Random) -> str:
    place = random.randrange(len(items))
    if isinstance(blocks := _blocks(items[place]), list) and len(blocks) > 1:
        return str(_kind(blocks.pop(random.randrange(len(blocks)))))
    return str(_kind(items.pop(place)))


def _swap(items: Any, found: Any, random: Random) -> str | None:
    place = random.randrange(len(items))
    blocks = _blocks(items[place])
    row = blocks if isinstance(blocks, list) and len(blocks) > 1 else items
    if len(row) < 2:
        return None
    at = random.randrange(len(row) - 1)
    kinds = f"{_kind(row[at])}, {_kind(row[at + 1])}"
    row[at], row[at + 1] = row[at + 1], row[at]
    return kinds


def _twice(items: Any, found: Any, random: Random) -> str:
    place = random.randrange(len(items))
    items.insert(place, copy.deepcopy(items[place]))
    return str(_kind(items[place]))


def _blocks(item: Any) -> Any:
    return item.get("content") if "content" in item else item.get("parts")


def _kind(item: Any) -> Any:
    blocks, kind = _blocks(item), item.get("type")
    said = [(("text",), blocks)] if isinstance(blocks, str) else leaves(blocks or [])
    if "role" in item and not any(text for path, text in said if path[-1] not in _IDS):
        return f"empty {item['role']}"
    if kind in ("thinking", "reasoning"):
        empty = not (item.get("thinking") or item.get("summary") or item.get("content"))
        return f"{'empty ' * empty}thinking"
    if item.get("thought"):
        return f"{'empty ' * (not item.get('text'))}thinking"
    if isinstance(blocks, str) and blocks.startswith("<think>"):
        empty = not blocks.removeprefix("<think>").partition("</think>")[0].strip()
        return f"{'empty ' * empty}thinking as text"
    return item.get("type") or item.get("role") or "+".join(sorted({*item} - NOTHING))


_KINDS: list[tuple[str, Any, Any]] = [
    ("letter", lambda items, found: _texts(found), _letter),
    ("space", lambda items, found: _texts(found), _space),
    ("cut", lambda items, found: _texts(found), _cut),
    ("value", lambda items, found: _values(found), _value),
    ("name", lambda items, found: _names(found), _name),
    ("role", lambda items, found: any(item.get("role") in _ROLES for item in items), _role),
    ("drop", lambda items, found: items, _drop),
    ("swap", lambda items, found: items, _swap),
    ("twice", lambda items, found: items, _twice),
]
"""Each kind of edit: its name, whether it can be made, and what makes it."""
