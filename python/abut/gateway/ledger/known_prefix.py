"""The beginning of a request that was compared before, found without a look at each message.

Invariant: a message is a known one only where both are equal as JSON, `true` being no number. What
a request is compared by, branch by branch, costs what is new in it; the rest is one comparison of
two lists.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from operator import eq
from typing import Any, NamedTuple

from abut.gateway.ledger.comparable import CallIds, CallPosition, call_ids
from abut.messages import Message


class SeenMessages(NamedTuple):
    """What of a request was seen before."""

    messages: int = 0
    """So many of the first."""
    ids: CallIds | None = None
    """Of the calls in them; it grows with what is learned."""
    answers: Sequence[CallPosition | None] = ()
    """For each of them, the call that it answers."""


class PrefixMatch(NamedTuple):
    """What came of comparing the beginning of a branch."""

    turns: int
    """So many answers are in it."""
    behind_turn: int
    """So many messages up to and with the last of them."""
    rewrites: dict[str, int]
    """How many of its answers have come back changed, by rule."""
    same_ids: int
    """So many answers whose calls have our ids."""


class KnownPrefix:
    """How a client writes the beginning of a branch, as it was found to be that.

    Attributes:
        messages: the client's: the k-th is the k-th entry of the branch.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._keys: list[Any] = []
        self._rules: dict[int, str] = {}  # by the places of answers that came back changed
        self._answers: list[int] = []
        self._same_ids: list[int] = []  # of the answers up to each
        self._ids = CallIds()
        self._places: list[CallPosition | None] = []

    def common(self, messages: Sequence[Any]) -> int:
        """How many of the first messages are known."""
        keys = self._keys
        if messages[: len(keys)] == keys:  # no look at each: what is equal is mostly the same
            return len(keys)
        equal = list(map(eq, messages, keys))
        return equal.index(False) if False in equal else len(equal)

    def seen(self, count: int) -> SeenMessages:
        """What the first messages are, so many of them."""
        ids = self._ids if count == len(self.messages) else call_ids(self.messages[:count])
        return SeenMessages(count, ids, self._places)

    def compared(self, count: int) -> PrefixMatch:
        """What came of comparing so many of them."""
        turns = bisect_left(self._answers, count)
        rewrites: dict[str, int] = {}
        for place, rule in self._rules.items():
            if place < count:
                rewrites[rule] = rewrites.get(rule, 0) + 1
        behind_turn = self._answers[turns - 1] + 1 if turns else 0
        same_ids = self._same_ids[turns - 1] if turns else 0
        return PrefixMatch(turns, behind_turn, rewrites, same_ids)

    def learn(
        self, place: int, message: Message, *, ours: bool, rule: str = "", same_ids: bool = False
    ) -> None:
        """Note a message that is the entry at that place, behind known ones.

        Args:
            place: of the entry; what was known from there on is forgotten.
            message: as the client writes it.
            ours: whether it is an answer of the policy.
            rule: by which it is that.
            same_ids: whether its calls have our ids.
        """
        if place < len(self.messages):
            self._forget(place)
        self.messages.append(message)
        self._keys.append(message if _is_plain(message) else _Exact(message))
        if rule:
            self._rules[place] = rule
        self._places.append(self._ids.place(message))
        self._ids.add(message, place)
        if ours:
            before = self._same_ids[-1] if self._same_ids else 0
            self._answers.append(place)
            self._same_ids.append(before + same_ids)

    def first(self, count: int) -> "KnownPrefix":
        """What is known of so many entries."""
        other = KnownPrefix()
        other.messages, other._keys = self.messages[:], self._keys[:]
        other._rules, other._answers = {**self._rules}, self._answers[:]
        other._same_ids, other._places = self._same_ids[:], self._places[:]
        other._forget(count)
        return other

    def _forget(self, place: int) -> None:
        """Forget what stands from a place on."""
        turns = bisect_left(self._answers, place)
        del self.messages[place:], self._keys[place:]
        self._rules = {at: rule for at, rule in self._rules.items() if at < place}
        del self._answers[turns:], self._same_ids[turns:]
        del self._places[place:]
        self._ids = call_ids(self.messages)


class _Exact:
    """Equals a message as JSON only: to Python `True` equals 1."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._text = json.dumps(message)

    def __eq__(self, other: object) -> bool:
        if other is self._message:
            return True
        return isinstance(other, dict) and json.dumps(other) == self._text

    __hash__ = None  # type: ignore[assignment]


def _is_plain(message: Message) -> bool:
    """Whether nothing in it is a number or a bool, so that Python's equality is JSON's."""
    values: list[Any] = [message]
    for value in values:  # which grows by what is inside
        if type(value) is dict:
            values += value.values()
        elif type(value) is list:
            values += value
        elif value is not None and type(value) is not str:
            return False
    return True
