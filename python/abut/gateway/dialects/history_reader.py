"""Reads the history in a body as messages; the history repeats that of the previous body.

Invariant: the messages and their digest equal those of reading the whole history. Elements that the
previous body had are not read again.
"""

import hashlib
import marshal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from abut.gateway.dialects.dialect import Like
from abut.messages import Message, with_hashes


class HistoryReader(ABC):
    """Reads the histories of one conversation's bodies, on the loop of the gateway.

    Args:
        settings: everything besides the history on which the messages depend, as a dialect has read
            it.

    Attributes:
        messages: the messages of the last history.
    """

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings
        self.messages: list[Message] = []
        self._digests: list[bytes] = []  # of the messages up to each
        # The number of messages after so many elements, wherever reading can continue.
        self._ends = {0: 0}
        self._number = 0
        self._head: list[Message] = []
        self._head_digest = _digest(b"", [])

    @property
    def reading(self) -> "Reading":
        """The state after the last history, until another history is read."""
        return Reading(self, self._number)

    def digest(self, head: Sequence[Message] = ()) -> bytes:
        """Return a digest of the messages, including those inherited from an earlier answer."""
        # There are only strings, so Python's equality equals JSON's. Mostly they are the same
        # objects.
        if [*head] != self._head:
            self._head, self._head_digest = [*head], _digest(b"", [*head])
        return _digest(self._head_digest, self._last_digest)

    def goes_on(self, reading: "Reading", begin: int) -> bool:
        """Return whether it can continue to read after an element.

        Args:
            reading: its state after the elements up to that one.
            begin: how many elements these are.
        """
        return reading.number == self._number and begin in self._ends

    def read(self, given: Sequence[Any], begin: int) -> None:
        """Read a history whose elements before `begin` equal those of the last history.

        Raises:
            Refusal: an element cannot be read.
        """
        start = before_last = self._ends[begin]
        self._ends = {}  # until all is read, because reading cannot continue after a refusal
        self._number += 1
        replaced = list(zip(self._digests[start:], self.messages[start:], strict=True))
        del self.messages[start:], self._digests[start:]
        for place in range(begin, len(given)):
            before_last = len(self.messages)
            self.add(given[place], place)
        ends_here = self.close()
        last = self._last_digest
        for at in range(start, len(self.messages)):
            last = _digest(last, with_hashes(self.messages[at]))
            self._digests.append(last)
            if at < start + len(replaced) and replaced[at - start][0] == last:
                # Matching compares messages, and comparing an object with itself is free.
                self.messages[at] = replaced[at - start][1]
        if begin < len(given) and self.leaves_only_messages(given[-1]):
            self._ends[len(given) - 1] = before_last
        if ends_here:
            self._ends[len(given)] = len(self.messages)

    @abstractmethod
    def add(self, element: Any, place: int) -> None:
        """Add the messages of the next element.

        Args:
            element: of the history.
            place: its index, for errors.

        Raises:
            Refusal: it cannot be read.
        """

    def expects(self, elements: Sequence[Any]) -> bool:
        """Return whether it can read these elements next, and prepare for them."""
        return True

    def close(self) -> bool:
        """Complete the last message; return whether no further element can belong to it."""
        return True

    def leaves_only_messages(self, element: Any) -> bool:
        """Return whether removing an element's messages undoes all of its effects."""
        return False

    @property
    def _last_digest(self) -> bytes:
        return self._digests[-1] if self._digests else b""


class Reading(NamedTuple):
    """The state of a reader after the history of one request."""

    reader: HistoryReader
    number: int
    """How many histories the reader had read."""


def _digest(before: bytes, value: Any) -> bytes:
    """Return a digest of a JSON value and of everything before it."""
    # Without references, which `marshal` writes since version 3, equal values have equal bytes. It
    # takes a fifth of the time of `json.dumps`.
    return hashlib.sha256(before + marshal.dumps(value, 2)).digest()


def settings_of(like: Like | None) -> Any:
    """Return the settings of the reader of an earlier history; None without one."""
    reading = None if like is None else like.request.reading
    return reading.reader.settings if isinstance(reading, Reading) else None


Reader = TypeVar("Reader", bound=HistoryReader)


def read_history(given: Sequence[Any], like: Like | None, new: Reader) -> Reader:
    """Return a reader that has read a history; the reader of an earlier body if that can continue.

    Args:
        given: the elements of the history.
        like: what the body repeats of an earlier one.
        new: a reader that has not read anything.

    Raises:
        Refusal: an element cannot be read.
    """
    if like is not None and isinstance(reading := like.request.reading, Reading):
        reader = reading.reader
        if (
            isinstance(reader, type(new))
            and reader.settings == new.settings
            and reader.goes_on(reading, like.elements)
            and reader.expects(given[like.elements :])
        ):
            reader.settings = new.settings
            reader.read(given, like.elements)
            return reader
    new.expects(given)
    new.read(given, 0)
    return new
