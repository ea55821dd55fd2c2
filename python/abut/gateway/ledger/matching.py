"""How far a conversation and a request's messages agree.

Invariant: a history that was edited never matches. Messages are compared one by one, and a request
that repeats messages is compared only in what is new. An answer that a client leaves out is handled
here, because it concerns two lists and not two messages.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from abut.gateway.ledger.comparable import CallIds, CallPosition, calls_of, comparable_message
from abut.gateway.ledger.entry import (
    BranchEntry,
    Dialect,
    Spelling,
    coarse,
    ids_of,
    rewrite_of,
    spelled,
)
from abut.messages import Message

LEFT_OUT = "empty_turn_left_out"
"""The rewrite of a client that leaves out an answer without text and calls."""

_NO_JOINTS: Mapping[str, str | None] = {}


class History:
    """The messages of one request, and what each is compared by."""

    def __init__(
        self, messages: list[Message], joints: Mapping[str, str | None] = _NO_JOINTS
    ) -> None:
        """Hold the messages.

        Args:
            messages: of the request. A message that is known is replaced by the equal object that
                the branch has, so that a rollout holds each message once.
            joints: by role, the text that the row has between two text parts.
        """
        self.messages = messages
        self._joints = joints
        self._comparables: dict[int, Hashable] = {}

    @cached_property
    def _answers(self) -> list[CallPosition | None]:
        ids, answers = CallIds(), []
        for at, message in enumerate(self.messages):
            answers.append(ids.call_of(message))
            ids.add(message, at)
        return answers

    def answered(self, at: int) -> CallPosition | None:
        """Return the call that a tool's message answers, by the ids of this request."""
        return self._answers[at]

    def known(self, entries: Sequence[BranchEntry], dialect: Dialect) -> Spelling | None:
        """Return the spelling of the last message that is known, with all messages before it."""
        found: Spelling | None = None
        messages = self.messages
        for at, (entry, message) in enumerate(zip(entries, messages, strict=False)):
            known = entry.spelling
            if known is None or known.before is not found or known.dialect is not dialect:
                break
            if message is not known.message:
                if known.key != message:
                    break
                messages[at] = known.message
            found = known
        return found

    def has_answer_from(self, at: int) -> bool:
        """Return whether a message from there on is an assistant's."""
        return any(message.get("role") == "assistant" for message in self.messages[at:])

    def comparable(self, at: int) -> Hashable:
        """Return the comparable value of a client's message.

        Only on demand: an answer may come back with thousands of token ids.
        """
        if at not in self._comparables:
            message = self.messages[at]
            self._comparables[at] = comparable_message(
                message,
                has_call=self.answered(at) is not None,
                joint=self._joints.get(str(message.get("role"))),
            )
        return self._comparables[at]

    def coarse(self, at: int) -> Hashable:
        """Return what equals an entry's `coarse` where their comparable values are equal."""
        return coarse(self.messages[at])


@dataclass(frozen=True)
class Match:
    """How far a branch and a request agree.

    Attributes:
        entries: how many entries of the branch agree.
        messages: how many messages of the request agree.
        turns: how many of the entries are answers.
        behind_turn: how many entries and messages there are up to and with the last answer.
        rewrites: how many answers came back changed, by rule.
        entry_of: the index of the entry that each message is.
        same_ids: how many answers have calls with our ids.
        last: the last answer that was not left out: its turn, and its message.
    """

    entries: int
    messages: int
    turns: int
    behind_turn: tuple[int, int]
    rewrites: Mapping[str, int]
    entry_of: Sequence[int]
    same_ids: int
    last: tuple[int, int] | None
    spelling: Spelling | None = field(default=None, compare=False, repr=False)
    """Of the last answer; None if there is none, or an answer was left out before."""


def match(entries: Sequence[BranchEntry], history: History, dialect: Dialect) -> Match:
    """Find how far a branch is the beginning of a request.

    The entries that match learn how the client writes them.

    Args:
        entries: of the branch.
        history: of the request.
        dialect: of the request.
    """
    messages = history.messages
    known = history.known(entries, dialect)
    at = place = turns = behind = same_ids = 0
    found: dict[str, int] = {}
    answer = None
    if known is not None:
        at = place = known.count
        turns, same_ids, found, answer = (
            known.turns,
            known.same_ids,
            {**known.rewrites},
            known.last_answer,
        )
        behind = 0 if answer is None else answer.count
    behind_turn, last = (behind, behind), (turns - 1, behind - 1) if turns else None
    entry_of = list(range(place))
    shared = (at, turns, behind_turn, answer)  # up to the last entry that the request has
    for entry in islice(entries, at, None):
        message = messages[place] if place < len(messages) else None
        if message is None:
            break
        how = _how_returned(history, place, entry, entry_of, dialect)
        if how is not None:
            ids = entry.call_ids if entry.ours else ()
            same = bool(ids) and ids_of(calls_of(message)) == ids
            if at == place:  # no answer was left out before
                known = entry.spelling = spelled(
                    known, message, dialect, ours=entry.ours, rule=how, same_ids=same
                )
            if entry.ours:
                same_ids, last = same_ids + same, (turns, place)
            entry_of.append(at)
            place += 1
        elif entry.is_empty and dialect.leaves_out_empty_turns:
            how = LEFT_OUT
        else:
            break
        at += 1
        if entry.ours:
            if how:
                found[how] = found.get(how, 0) + 1
            turns += 1
            behind_turn = (at, place)
            answer = known if at == place else None
        if how != LEFT_OUT:
            shared = (at, turns, behind_turn, answer)
    # An empty answer at the end counts as left out only if no assistant message follows: with one,
    # the client wrote another answer in its place, which is an edit.
    if at > shared[0] and history.has_answer_from(place):
        found[LEFT_OUT] -= turns - shared[1]
        at, turns, behind_turn, answer = shared
    rewrites = {rule: count for rule, count in found.items() if count}
    return Match(at, place, turns, behind_turn, rewrites, entry_of, same_ids, last, answer)


def call_at(history: History, at: int, entry_of: Sequence[int]) -> CallPosition | None:
    """Return the call that a message answers, as its entry's index and its number there.

    Args:
        history: has the message.
        at: its index.
        entry_of: the entries of the messages before it.
    """
    call = history.answered(at)
    return None if call is None else (entry_of[call[0]], call[1])


def _how_returned(
    history: History, at: int, entry: BranchEntry, entry_of: Sequence[int], dialect: Dialect
) -> str | None:
    """Return `""` if a message is this entry, the rule if it was changed, None if it is not."""
    if entry.ours:
        return rewrite_of(history.messages[at], entry, dialect)
    same = history.comparable(at) == entry.comparable
    return "" if same and entry.answers == call_at(history, at, entry_of) else None
