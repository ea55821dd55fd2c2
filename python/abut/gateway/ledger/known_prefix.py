"""The beginning of a request that was compared before, so that it is not compared again.

Invariant: a message is known only if it equals one that was compared, as JSON (`true` is not a
number). Comparing a request with a branch takes time for its new messages; for the others it takes
one comparison of two lists.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from operator import eq
from typing import Any, NamedTuple

from abut.gateway.ledger.comparable import CallIds, CallPosition, call_ids
from abut.messages import Message


class SeenMessages(NamedTuple):
    """The first messages of a request, which an earlier request had too."""

    messages: int = 0
    """How many there are."""
    ids: CallIds | None = None
    """The ids of the calls in them; grows as more messages become known."""
    answers: Sequence[CallPosition | None] = ()
    """For each of them, the call that it answers."""


class PrefixMatch(NamedTuple):
    """The result of comparing the beginning of a branch."""

    turns: int
    """How many answers are in it."""
    behind_turn: int
    """How many messages there are up to and with the last answer."""
    rewrites: dict[str, int]
    """How many of its answers came back changed, by rule."""
    same_ids: int
    """How many answers have calls with our ids."""


class KnownPrefix:
    """The messages that a client writes for the beginning of a branch.

    Attributes:
        messages: the k-th is how the client writes the k-th entry of the branch.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._keys: list[Any] = []
        self._rules: dict[int, str] = {}  # by the indices of answers that came back changed
        self._answers: list[int] = []
        self._same_ids: list[int] = []  # among the answers up to each
        self._ids = CallIds()
        self._calls: list[CallPosition | None] = []

    def common(self, messages: Sequence[Any]) -> int:
        """Return how many of the first messages are known."""
        keys = self._keys
        if messages[: len(keys)] == keys:  # a C loop over mostly identical objects
            return len(keys)
        equal = list(map(eq, messages, keys))
        return equal.index(False) if False in equal else len(equal)

    def seen(self, count: int) -> SeenMessages:
        """Return the first `count` messages as seen."""
        ids = self._ids if count == len(self.messages) else call_ids(self.messages[:count])
        return SeenMessages(count, ids, self._calls)

    def compared(self, count: int) -> PrefixMatch:
        """Return the result of comparing the first `count` messages."""
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
        """Note how a client writes the entry behind the known ones.

        Args:
            place: the entry's index; messages that were known from there on are forgotten.
            message: as the client writes it.
            ours: whether it is an answer of the policy.
            rule: the rule by which a changed answer matched.
            same_ids: whether its calls have our ids.
        """
        if place < len(self.messages):
            self._forget(place)
        self.messages.append(message)
        self._keys.append(message if _is_plain(message) else _Exact(message))
        if rule:
            self._rules[place] = rule
        self._calls.append(self._ids.call_of(message))
        self._ids.add(message, place)
        if ours:
            before = self._same_ids[-1] if self._same_ids else 0
            self._answers.append(place)
            self._same_ids.append(before + same_ids)

    def first(self, count: int) -> "KnownPrefix":
        """Return a copy that knows only the first `count` entries."""
        other = KnownPrefix()
        other.messages, other._keys = self.messages[:], self._keys[:]
        other._rules, other._answers = {**self._rules}, self._answers[:]
        other._same_ids, other._calls = self._same_ids[:], self._calls[:]
        other._forget(count)
        return other

    def _forget(self, place: int) -> None:
        """Forget the messages from an index on."""
        turns = bisect_left(self._answers, place)
        del self.messages[place:], self._keys[place:]
        self._rules = {at: rule for at, rule in self._rules.items() if at < place}
        del self._answers[turns:], self._same_ids[turns:]
        del self._calls[place:]
        self._ids = call_ids(self.messages)


class _Exact:
    """A message that equals another one only as JSON: to Python `True` equals 1."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._text = json.dumps(message)

    def __eq__(self, other: object) -> bool:
        if other is self._message:
            return True
        return isinstance(other, dict) and json.dumps(other) == self._text

    __hash__ = None  # type: ignore[assignment]


def _is_plain(message: Message) -> bool:
    """Return whether a message has no number and no bool, so that Python's equality is JSON's."""
    values: list[Any] = [message]
    for value in values:  # grows while it is read
        if type(value) is dict:
            values += value.values()
        elif type(value) is list:
            values += value
        elif value is not None and type(value) is not str:
            return False
    return True
