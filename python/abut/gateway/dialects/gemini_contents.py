"""The contents of a Gemini request as the messages of a chat.

Invariant: a result answers the call with its id, if the names agree. Chats and LangChain send
results without an id; such a result answers the first open call of its name in the previous turn.
"""

import base64
import binascii
import functools
import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abut.gateway.dialects.dialect import blocks_in, content_of
from abut.gateway.dialects.history_reader import HistoryReader
from abut.gateway.dialects.image_fields import (
    ImageField,
    base64_at,
    check_media_type,
    not_fetched,
    unread,
)
from abut.gateway.dialects.returned_turn import ReturnedTurn
from abut.gateway.ledger.agent_call import HANDLES
from abut.gateway.ledger.comparable import MOST_DEPTH, is_deep
from abut.gateway.ledger.refusal import Refusal
from abut.images import Image
from abut.messages import Message

_UPPER = re.compile("[A-Z]")
_STANDARD = str.maketrans("-_", "+/")
_ROLES = ("user", "model", "function")
# A part has one of them.
_DATA = (
    *("text", "functionCall", "functionResponse", "inlineData", "fileData"),
    *("executableCode", "codeExecutionResult"),
)


def value_of(value: Mapping[str, Any], name: str) -> Any:
    """Return a field by its camelCase name, in either spelling; None if it is missing."""
    found = value.get(name)
    return value.get(_snake(name)) if found is None else found


@functools.cache  # caches only the dozen names that are read here, never names from clients
def _snake(name: str) -> str:
    return _UPPER.sub(lambda letter: f"_{letter[0].lower()}", name)


def object_of(value: Any, where: str) -> Mapping[str, Any]:
    """Return a value that is an object.

    Raises:
        Refusal: it is not an object.
    """
    if not isinstance(value, dict):
        raise Refusal(f"{where} must be an object", param=where.partition("[")[0])
    return value


def texts_of_content(content: Any, where: str) -> list[str]:
    """Return the texts of a content that has only text."""
    if isinstance(content, str):
        return [content]
    parts = _parts(object_of(content, where), where)
    return [_text(part, where) for part in parts if _text(part, where)]


class ContentReader(HistoryReader):
    """Reads the contents of bodies."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._ids = _Ids()
        self._turn: _ModelTurn | None = None

    def expects(self, elements: Sequence[Any]) -> bool:
        """Note the ids of calls; return whether none of them was already given to another call."""
        ids = {*_ids_in(elements)}
        if not self._ids.made.isdisjoint(ids):
            return False
        self._ids.used |= ids
        return True

    def add(self, element: Any, place: int) -> None:
        """Add the messages of a content, or its parts to the message of the model's turn."""
        where = f"contents[{place}]"
        role = object_of(element, where).get("role") or "user"
        if role not in _ROLES:
            raise Refusal(f"{where} must have a role, one of {', '.join(_ROLES)}", param="contents")
        parts = _parts(element, where)
        if role != "model":
            self.close()
            self.messages += _said(parts, where, self._ids)
            return
        if self._turn is None:
            self._turn = _ModelTurn(self._ids)
            self.messages.append(self._turn.message)
            self._ids.begin_turn()
        for part in parts:
            self._turn.add(part, where)

    def close(self) -> bool:
        """End the model's turn; return whether no turn was open."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.end()
        return turn is None


class _Ids:
    """The ids of the calls in a history, and the calls of its last turn without a result.

    A call without an id gets a unique id that every template accepts.

    Attributes:
        used: the ids of all calls, including those that are still to be read.
        made: the ids that were given to calls without an id.
    """

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.made: set[str] = set()
        self._number = 0
        self._names: dict[str, str] = {}
        self.begin_turn()

    def begin_turn(self) -> None:
        """Forget the earlier calls, because no result without an id can answer them any more."""
        self._open: dict[str, str] = {}
        self._in_order: defaultdict[str, deque[str]] = defaultdict(deque)  # by name

    def call(self, name: str, given: Any) -> str:
        """Return the id of a call."""
        id_ = given = given or None
        while not isinstance(id_, str) or (given is None and id_ in self.used):
            id_ = f"call{self._number:05d}"
            self._number += 1
        if id_ is not given:
            self.made.add(id_)
        self.used.add(id_)
        self._names[id_] = self._open[id_] = name
        self._in_order[name].append(id_)
        return id_

    def result(self, name: str, given: Any) -> str | None:
        """Return the id of the call that a result answers; None if it does not answer a call."""
        given = given or self._first_open(name)
        if not isinstance(given, str):
            return None
        self._open.pop(given, None)
        return given if self._names.get(given) == name else None

    def _first_open(self, name: str) -> str | None:
        in_order = self._in_order[name]
        while in_order:
            id_ = in_order.popleft()
            if self._open.get(id_) == name:  # else a result has had its id
                return id_
        return None


def _ids_in(contents: Sequence[Any]) -> Iterator[str]:
    for content in contents:
        for part in _parts(content, "contents") if isinstance(content, dict) else ():
            call = value_of(part, "functionCall")
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                yield call["id"]


class _ModelTurn(ReturnedTurn):
    """Consecutive contents of the model.

    Args:
        ids: of the calls before.
    """

    def __init__(self, ids: _Ids) -> None:
        super().__init__()
        self._ids = ids
        self._last_handle = ""

    def add(self, part: Mapping[str, Any], where: str) -> None:
        """Add the next part."""
        handle = _handle(value_of(part, "thoughtSignature"))
        if handle != self._last_handle:  # several parts may have the same one
            self.add_handle(handle)
            self._last_handle = handle or self._last_handle
        call = value_of(part, "functionCall")
        if call is not None:
            self.add_call(self._call(call, where))
        elif not (text := _text(part, where)):
            return  # nothing but its signature
        elif part.get("thought"):
            self.add_reasoning(text)
        else:
            self.add_text(text)

    def _call(self, call: Any, where: str) -> dict[str, Any]:
        name, arguments = object_of(call, where).get("name"), call.get("args") or {}
        # A string is allowed, because a client keeps arguments that it could not parse.
        known = isinstance(arguments, dict | str) and not is_deep(arguments)
        if not isinstance(name, str) or not known:
            raise Refusal(
                f"{where} must have function calls with a name and with args, an object nested "
                f"at most {MOST_DEPTH} deep",
                param="contents",
            )
        id_ = self._ids.call(name, call.get("id"))
        return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _said(parts: list[Mapping[str, Any]], where: str, ids: _Ids) -> list[Message]:
    """Return the results of a client's content, followed by a message with the other parts."""
    messages: list[Message] = []
    others: list[str | Image] = []
    for part in parts:
        response = value_of(part, "functionResponse")
        if response is None:
            is_image = value_of(part, "inlineData") is not None
            others.append(_image(part, where) if is_image else _text(part, where))
            continue
        name = object_of(response, where).get("name")
        if not isinstance(name, str):
            raise Refusal(f"{where} has a functionResponse without a name", param="contents")
        id_ = ids.result(name, response.get("id"))
        text = _result(response.get("response"))
        shown = [_image(part, where) for _, part in blocks_in(response, "parts")]
        message: Message = {"role": "tool", "content": content_of([text, *shown])}
        messages.append(message | ({"name": name} if id_ is None else {"tool_call_id": id_}))
    if others or not messages:
        messages.append({"role": "user", "content": content_of(others)})
    return messages


def image_fields(content: Any, where: str) -> Iterator[ImageField]:
    """Yield the images of a content, including those that tools returned.

    Args:
        content: of a body.
        where: the path of the content in the body.
    """
    role = {None: "user", "model": "assistant"}.get(role := content.get("role"), role)
    parts = blocks_in(content, "parts")
    if isinstance(alone := content.get("parts"), dict):
        parts = iter([(0, alone)])
    for number, part in parts:
        path = f"{where}.parts[{number}]"
        yield from _image_field(part, path, str(role))
        for key in ("functionResponse", "function_response"):
            for inner, shown in blocks_in(part.get(key), "parts"):
                yield from _image_field(shown, f"{path}.{key}.parts[{inner}]", "tool")


def _image_field(part: dict[str, Any], path: str, role: str) -> Iterator[ImageField]:
    if (elsewhere := value_of(part, "fileData")) is not None:
        raise not_fetched(f"{path}.fileData", elsewhere)
    key = "inlineData" if part.get("inlineData") is not None else "inline_data"
    if isinstance(data := part.get(key), dict):
        path = f"{path}.{key}"
        check_media_type(value_of(data, "mimeType"), f"{path}.mimeType")
        # Google's SDK writes URL-safe base64, and protobuf's JSON leaves out the padding.
        text = base64_at(data, "data", path).translate(_STANDARD).rstrip("=")
        yield ImageField(path, role, text + "=" * (-len(text) % 4), part, key)


def _result(response: Any) -> str:
    """Return the text of a result: its only field if that is a string, otherwise its JSON."""
    if isinstance(response, dict) and len(response) == 1:
        (value,) = response.values()
        if isinstance(value, str):
            return value
    return json.dumps(response, ensure_ascii=False)


def _parts(content: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    parts = content.get("parts") or []
    if isinstance(parts, dict):
        parts = [parts]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise Refusal(f"{where} must have parts, a list of objects", param=where.partition("[")[0])
    for part in parts:
        if len(part) > 1 and sum(value_of(part, kind) is not None for kind in _DATA) > 1:
            raise Refusal(
                f"{where} has a part with two kinds of data\nhint: split it into two parts",
                param=where.partition("[")[0],
            )
    return parts


def _text(part: Mapping[str, Any], where: str) -> str:
    """Return the text of a part; empty if the part has only a signature."""
    text = part.get("text")
    if isinstance(text, str):
        return text
    if text is not None or {*part} - {"thought", "thoughtSignature", "thought_signature"}:
        raise _unread(part, where)
    return ""


def _image(part: Mapping[str, Any], where: str) -> Image:
    """Return the image of a part that has one, and nothing else."""
    image = value_of(part, "inlineData")
    if not isinstance(image, Image):
        raise _unread(part, where)
    return image


def _unread(part: Mapping[str, Any], where: str) -> Refusal:
    data = value_of(part, "inlineData")
    kind = value_of(data, "mimeType") if isinstance(data, dict) else None
    return unread(where, kind or ", ".join(sorted(part)))


def _handle(signature: Any) -> str:
    """Return the reasoning handle in a signature; empty if the gateway did not write it."""
    if not isinstance(signature, str):
        return ""
    try:
        text = base64.urlsafe_b64decode(signature.replace("+", "-").replace("/", "_")).decode()
    except (binascii.Error, ValueError):
        return ""
    return text if text.startswith(HANDLES) else ""
