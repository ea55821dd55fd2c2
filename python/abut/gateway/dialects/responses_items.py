"""The items of a Responses request as the messages of a chat.

Invariant: the items between two inputs are one turn, in the order in which an answer has them. Ids,
states and labels of items are ignored.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from abut.gateway.dialects.dialect import blocks_in, content_of, text_at
from abut.gateway.dialects.history_reader import HistoryReader
from abut.gateway.dialects.image_fields import (
    ImageField,
    base64_of_url,
    not_fetched,
    unread,
)
from abut.gateway.dialects.responses_tools import ResponsesTools, add_tools, call_of_item
from abut.gateway.dialects.returned_turn import ReturnedTurn
from abut.gateway.ledger.comparable import MOST_DEPTH, is_deep
from abut.gateway.ledger.entry import REREAD, RESPELLED
from abut.gateway.ledger.refusal import Refusal, short
from abut.images import Image
from abut.messages import Message

THINKING_AS_TEXT = "thinking_as_text"
"""The rule for a client that writes thinking as text, see `ResponsesRewrite`."""

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_CALLS = ("function_call", "custom_tool_call", "tool_search_call", "computer_call")
_FOUND = "tool_search_output"
_SCREENSHOT = "computer_call_output"
_OUTPUTS = ("function_call_output", "custom_tool_call_output", _SCREENSHOT)
_IMAGES = ("input_image", "computer_screenshot")
# The field of a message for each list of texts of a reasoning item.
_REASONING = {"summary": "reasoning_content", "content": "reasoning"}
_THINKING = re.compile(r"<think>\n(.*)\n</think>", re.DOTALL)


class BodyTools(NamedTuple):
    """The tools of a body, parsed and as given."""

    tools: ResponsesTools
    given: list[Any]


class ItemReader(HistoryReader):
    """Reads the items of bodies with the same tools.

    Args:
        settings: the tools of these bodies.
        thinking_as_text: whether an answer with its thinking as text may be the policy's.

    Attributes:
        tools: the tools of the body, and the names of tools that searches have found.
    """

    def __init__(self, settings: BodyTools, thinking_as_text: bool) -> None:
        super().__init__(settings)
        self.tools = settings.tools
        self._thinking_as_text = thinking_as_text
        self._turn: _ItemTurn | None = None

    def add(self, element: Any, place: int) -> None:
        """Add the message of an item, or add the item to the message of its turn."""
        where = f"input[{place}]"
        if not isinstance(element, dict):
            raise Refusal(f"{where} must be an object", param="input")
        kind, role = element.get("type") or "message", element.get("role")
        if kind == "message" and role not in _ROLES:
            raise Refusal(f"{where} must have a role, one of {', '.join(_ROLES)}", param="input")
        if kind in ("reasoning", *_CALLS) or (kind, role) == ("message", "assistant"):
            if self._turn is None:
                self._turn = _ItemTurn(self._thinking_as_text)
                self.messages.append(self._turn.message)
            self._turn.add(kind, element, where, self.tools)
            return
        self.close()
        if kind == _FOUND:
            # The names of earlier requests do not change. All searches together may find more tools
            # than a prompt may show.
            self.tools = ResponsesTools([], {**self.tools.names}, [*self.tools.left_out])
        self.messages.append(_said(kind, element, where, self.tools))

    def close(self) -> bool:
        """End the turn; return whether no turn was open."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.end()
        return turn is None


class _ItemTurn:
    """The items between two inputs.

    Text like `<think>…</think>` may be an answer's thinking, as pydantic-ai writes it, or really
    its text. This depends on the answer, so the turn is read in both ways.

    Args:
        thinking_as_text: whether an answer with its thinking as text may be the policy's.
    """

    def __init__(self, thinking_as_text: bool) -> None:
        self._thinking_as_text = thinking_as_text
        self._turn = ReturnedTurn()
        self._reread: ReturnedTurn | None = None

    @property
    def message(self) -> Message:
        """The message of an answer; `end` completes it."""
        return self._turn.message

    def add(self, kind: str, item: Mapping[str, Any], where: str, tools: ResponsesTools) -> None:
        """Add the next item."""
        readings = [self._turn] if self._reread is None else [self._turn, self._reread]
        if kind == "reasoning":
            texts = {name: "".join(_texts(item.get(name), where)) for name in _REASONING}
            handle = text_at(item, "encrypted_content") or ""
            for turn in readings:
                for name, field in _REASONING.items():
                    turn.add_reasoning(texts[name], field)
                turn.add_handle(handle)
        elif kind in _CALLS:
            call = call_of_item(item, where, tools.names)
            for turn in readings:
                turn.add_call(call)
        else:
            self._add_message(item.get("content"), where, readings)

    def _add_message(self, content: Any, where: str, readings: list[ReturnedTurn]) -> None:
        parts = content if isinstance(content, list) else []
        if refused := [part for part in parts if _is_refusal(part)]:
            if is_deep(refused):
                raise Refusal(f"{where} is nested more than {MOST_DEPTH} deep", param="input")
            for turn in readings:
                turn.message["refusal"] = refused  # the policy's answers have none
        said = [part for part in parts if not _is_refusal(part)]
        text = "".join(_texts(said if parts else content, where))
        thinking = _THINKING.fullmatch(text) if self._thinking_as_text else None
        if thinking is not None and readings[-1].in_reasoning:
            self._reread = self._reread or self._turn.copy()
            self._reread.add_reasoning(thinking[1])
        elif self._reread is not None:
            self._reread.add_text(text)
        self._turn.add_text(text)

    def end(self) -> None:
        """Complete the message, with its other reading if there is one."""
        self._turn.end()
        if self._reread is not None:
            self.message[REREAD] = {**self._reread.end(), RESPELLED: THINKING_AS_TEXT}


def _is_refusal(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "refusal"


def _said(kind: str, item: Mapping[str, Any], where: str, tools: ResponsesTools) -> Message:
    """Return the message of an input; if it is the result of a search, add its tools to `tools`."""
    if kind == "message":
        return {"role": item["role"], "content": content_of(_parts(item.get("content"), where))}
    if kind != _FOUND and kind not in _OUTPUTS:
        raise Refusal(
            f"{where} has the type {short(kind)}, but abut takes only messages, reasoning, "
            "function calls and their outputs",
            param="input",
        )
    id_ = item.get("call_id")
    if not isinstance(id_, str):
        raise Refusal(f"{where} is a function call output without a call_id", param="input")
    if kind == _FOUND:
        add_tools(tools, item.get("tools") or [])
        found = [tool["function"] for tool in tools.shown]
        content = json.dumps(found, ensure_ascii=False)
    else:
        output = item.get("output")
        content = content_of(_parts([output] if kind == _SCREENSHOT else output, where))
    return {"role": "tool", "tool_call_id": id_, "content": content}


def image_fields(item: Mapping[str, Any], where: str) -> Iterator[ImageField]:
    """Yield the images in the content or output of an item.

    Args:
        item: of a body.
        where: the path of the item in the body.
    """
    role = str(item.get("role")).replace("developer", "system")
    for number, part in blocks_in(item, "content"):
        yield from _image_field(part, f"{where}.content[{number}]", role)
    if isinstance(output := item.get("output"), dict):
        yield from _image_field(output, f"{where}.output", "tool")
    for number, part in blocks_in(item, "output"):
        yield from _image_field(part, f"{where}.output[{number}]", "tool")


def _image_field(part: dict[str, Any], path: str, role: str) -> Iterator[ImageField]:
    if (kind := part.get("type")) in _IMAGES:
        if part.get("image_url") is None and part.get("file_id") is not None:
            raise not_fetched(f"{path}.file_id", part["file_id"])
        data = base64_of_url(part.get("image_url"), f"{path}.image_url")
        ignored = None if part.get("detail") is None else f"{kind}.detail"
        yield ImageField(f"{path}.image_url", role, data, part, "image_url", ignored)


def _texts(content: Any, where: str) -> list[str]:
    """Return the texts of a content that has only text."""
    parts = _parts(content, where)
    if not all(isinstance(part, str) for part in parts):
        raise unread(where, "image")
    return [part for part in parts if isinstance(part, str)]


def _parts(content: Any, where: str) -> list[str | Image]:
    """Return the texts and images of a content."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise Refusal(f"{where} must have a string or a list of text parts", param="input")
    parts: list[str | Image] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _IMAGES and isinstance(part.get("image_url"), Image):
            parts.append(part["image_url"])
        elif kind in _TEXTS and isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            raise unread(where, kind)
    return parts
