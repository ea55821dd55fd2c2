"""Builds the message of an answer from the parts of a turn in a client's history.

Invariant: an answer has its reasoning first, then its text, then its calls. A turn with its parts
in another order is marked, and does not count as an answer of the policy.
"""

from collections import defaultdict
from typing import Any

from abut.gateway.ledger.entry import HANDLE, REORDERED
from abut.messages import Message

_REASONING, _TEXT, _CALL = range(3)


class ReturnedTurn:
    """The parts of one turn, in the order in which the client has them.

    Attributes:
        message: has calls and marks as soon as they are added, and texts after `end`.
    """

    def __init__(self) -> None:
        self.message: Message = {"role": "assistant", "content": ""}
        self._last = _REASONING
        self._handles: list[str] = []
        self._said: defaultdict[str, list[str]] = defaultdict(list)  # joined once, at the end

    def copy(self) -> "ReturnedTurn":
        """Return a copy, to which more parts may be added."""
        other = ReturnedTurn()
        other.message, other._last, other._handles = {**self.message}, self._last, [*self._handles]
        other._said.update({field: [*texts] for field, texts in self._said.items()})
        return other

    @property
    def in_reasoning(self) -> bool:
        """True before the first text or call."""
        return self._last == _REASONING

    def add_reasoning(self, text: str, field: str = "reasoning_content") -> None:
        """Add reasoning; empty if the client kept only its handle.

        Args:
            text: of the reasoning.
            field: the field of the message that gets it, because a client may have two versions of
                one reasoning.
        """
        self._follow(_REASONING)
        if text:
            self._said[field].append(text)

    def add_handle(self, handle: str) -> None:
        """Add the handle of the reasoning; an answer has at most one."""
        if handle:
            self._handles.append(handle)

    def add_text(self, text: str) -> None:
        """Add text; empty text is ignored and does not count for the order."""
        if text:
            self._follow(_TEXT)
            self._said["content"].append(text)

    def add_call(self, call: dict[str, Any]) -> None:
        """Add a call."""
        self._follow(_CALL)
        self.message.setdefault("tool_calls", []).append(call)

    def end(self) -> Message:
        """Return the message, with the texts and handles of all parts."""
        self.message.update({field: "".join(texts) for field, texts in self._said.items()})
        if self._handles:
            self.message[HANDLE] = " ".join(self._handles)  # an answer does not have several
        return self.message

    def _follow(self, kind: int) -> None:
        if kind < self._last:
            self.message[REORDERED] = True
        self._last = kind
