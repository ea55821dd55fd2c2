"""Matching: how far a conversation and a request's messages agree.

Invariant: a history that was edited never matches. Some spellings of a message mean the same in
every protocol. A `Dialect` adds the changes that clients of its protocol are known to make to an
answer of the policy; each is counted as a rewrite. An answer that a client leaves out is handled
here, because it concerns two lists and not two messages. `docs/integrations/agents.md` has the
rules.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from abut.gateway.ledger.comparable import (
    CallIds,
    CallPosition,
    KnownPrefix,
    SeenMessages,
    arguments_of,
    calls_of,
    comparable,
    comparable_call,
    comparable_message,
    text_of,
)
from abut.gateway.ledger.entry import (
    HANDLE,
    LEFT_OUT,
    REORDERED,
    REREAD,
    RESPELLED,
    BranchEntry,
    Calls,
    Dialect,
    coarse_key,
    ids_of,
    without_space,
)
from abut.messages import Message

_NOTHING = SeenMessages()
_NO_JOINTS: Mapping[str, str | None] = {}
# The policy never fills these, so a message that does is not its answer.
_NEVER_OURS = ("refusal", "audio", "function_call", REORDERED)


class History:
    """The messages of one request, and the values by which they are compared."""

    def __init__(
        self,
        messages: Sequence[Message],
        seen: SeenMessages = _NOTHING,
        joints: Mapping[str, str | None] = _NO_JOINTS,
    ) -> None:
        """Read the ids of calls in the new messages.

        Args:
            messages: of the request.
            seen: the first of these messages, which were read before.
            joints: by role, the text that joins two text parts in the row.
        """
        self.messages = messages
        self._joints = joints
        self._comparables: dict[int, Hashable] = {}
        ids = CallIds(seen.ids)
        self._seen = seen
        self._answers: list[CallPosition | None] = []
        for at, message in enumerate(islice(messages, seen.messages, None), seen.messages):
            self._answers.append(ids.call_of(message))
            ids.add(message, at)

    def call_of(self, at: int) -> CallPosition | None:
        """Return the call that a tool's message answers, by the ids of this request."""
        seen = self._seen
        if at < seen.messages:
            return seen.answers[at]
        return self._answers[at - seen.messages]

    def has_answer_from(self, at: int) -> bool:
        """Return whether a message at or after this index is an assistant's."""
        return any(message.get("role") == "assistant" for message in self.messages[at:])

    def comparable(self, at: int) -> Hashable:
        """Return the comparable value of a client's message.

        Computed on demand, because an answer in the history may have thousands of token ids.
        """
        if at not in self._comparables:
            message = self.messages[at]
            self._comparables[at] = comparable_message(
                message,
                has_call=self.call_of(at) is not None,
                joint=self._joints.get(str(message.get("role"))),
            )
        return self._comparables[at]

    def coarse(self, at: int) -> Hashable:
        """Return a key that equals an entry's `coarse` if their comparable values are equal."""
        return coarse_key(self.messages[at])


@dataclass(frozen=True)
class Match:
    """How far a branch and a request agree.

    Attributes:
        entries: how many entries of the branch agree.
        messages: how many messages of the request agree.
        turns: how many of the entries are answers.
        answered_entries: how many entries there are, up to and including the last answer.
        answered_messages: how many messages there are, up to and including the last answer.
        rewrites: how many answers the client changed, by rule.
        entry_of: for each message, the index of its entry.
        same_ids: how many answers have calls with the gateway's ids.
        last: the last answer that the client did not leave out: its turn, and its message.
    """

    entries: int
    messages: int
    turns: int
    answered_entries: int
    answered_messages: int
    rewrites: Mapping[str, int]
    entry_of: Sequence[int]
    same_ids: int
    last: tuple[int, int] | None


def match(
    entries: Sequence[BranchEntry],
    history: History,
    dialect: Dialect,
    known: KnownPrefix | None = None,
) -> Match:
    """Find how far a branch is the beginning of a request.

    Args:
        entries: of the branch.
        history: of the request.
        dialect: of the request.
        known: this client's spelling of the beginning of the branch, which is not compared again;
            the messages that match are added to it.
    """
    messages, known = history.messages, KnownPrefix() if known is None else known
    at = place = known.common(messages)
    turns, behind, rewrites, same_ids = known.compared(place)
    behind_turn = (behind, behind)  # entries and messages up to and with the last answer
    last = (turns - 1, behind - 1) if turns else None
    entry_of = list(range(place))
    # `at` counts entries of the branch and `place` messages of the request: the entries are ahead
    # if the client left out an answer. `shared` is the state at the last entry that it has.
    shared = (at, turns, behind_turn)
    for entry in islice(entries, at, None):
        message = messages[place] if place < len(messages) else None
        if message is None:
            break
        how = _how_returned(history, place, entry, entry_of, dialect)
        if how is not None:
            same = (
                entry.ours and bool(entry.call_ids) and ids_of(calls_of(message)) == entry.call_ids
            )
            if at == place:  # no answer was left out before, so the two lists run in step
                known.learn(place, message, ours=entry.ours, rule=how, same_ids=same)
            if entry.ours:
                same_ids, last = same_ids + same, (turns, place)
            entry_of.append(at)
            place += 1
        elif entry.is_empty and LEFT_OUT in dialect.rewrites:
            how = LEFT_OUT
        else:
            break
        at += 1
        if entry.ours:
            if how:
                rewrites[how] = rewrites.get(how, 0) + 1
            turns += 1
            behind_turn = (at, place)
        if how != LEFT_OUT:
            shared = (at, turns, behind_turn)
    # An empty answer at the end counts as left out only if no assistant message follows: with one,
    # the client wrote another answer in its place, which is an edit.
    if at > shared[0] and history.has_answer_from(place):
        rewrites[LEFT_OUT] -= turns - shared[1]
        at, turns, behind_turn = shared
    rewrites = {rule: count for rule, count in rewrites.items() if count}
    return Match(at, place, turns, *behind_turn, rewrites, entry_of, same_ids, last)


def call_at(history: History, at: int, entry_of: Sequence[int]) -> CallPosition | None:
    """Return the call that a message answers: the index of its entry, and its number in that entry.

    Args:
        history: has the message.
        at: its index.
        entry_of: the entries of the messages before it.
    """
    call = history.call_of(at)
    return None if call is None else (entry_of[call[0]], call[1])


def _how_returned(
    history: History, at: int, entry: BranchEntry, entry_of: Sequence[int], dialect: Dialect
) -> str | None:
    """Return `""` if a message is this entry, the rule if a client changed it, otherwise None."""
    if entry.ours:
        return rewrite_of(history.messages[at], entry, dialect)
    same = history.comparable(at) == entry.comparable
    return "" if same and entry.answered_call == call_at(history, at, entry_of) else None


def rewrite_of(message: Message, entry: BranchEntry, dialect: Dialect) -> str | None:
    """Return `""` if a message is this answer, the rule if a client changed it, otherwise None."""
    how = _rewrite_of(message, entry, dialect)
    if how is None and (other := message.get(REREAD)) is not None:
        return None if _rewrite_of(other, entry, dialect) is None else str(other[RESPELLED])
    return how


def _rewrite_of(message: Message, entry: BranchEntry, dialect: Dialect) -> str | None:
    """Return the result of `rewrite_of` for one reading of a message."""
    if message == entry.message:  # it has only strings, so Python's `True == 1` does not matter
        return ""
    if message.get("role") != "assistant" or any(message.get(key) for key in _NEVER_OURS):
        return None
    text = text_of(content := message.get("content"))  # clients cut an answer anywhere
    if text is not None and text.strip() != entry.text:
        text = text_of(content, entry.joints.get("assistant", ""))
    if text is None or not _same_reasoning(message, entry):
        return None
    text, calls = text.strip(), calls_of(message)
    if len(calls) != len(message.get("tool_calls") or ()):
        return None
    same_calls = _same_calls(calls, entry)
    if same_calls and text == entry.text:
        return ""
    return dialect.rewrite_of(text, calls, entry, same_calls=same_calls)


def keys_returned(entry: BranchEntry) -> Iterator[Hashable]:
    """Yield the keys by which an index finds an answer.

    The keys are coarse: if `rewrite_of` matches a message, `keys_read` of it has one of these keys.
    """
    yield without_space(entry.text), key_of_calls(calls_of(entry.message))
    yield from entry.dialect.keys_returned(entry)


def keys_read(message: Message, dialect: Dialect) -> Iterator[Hashable]:
    """Yield the keys of a message that may be an answer."""
    if (other := message.get(REREAD)) is not None:
        yield from keys_read(other, dialect)
    if (text := text_of(message.get("content"))) is None:
        return
    calls = key_of_calls(calls_of(message))
    yield without_space(text), calls
    yield from dialect.keys_read(text, calls)


def is_left_out(message: Message) -> bool:
    """Return whether an entry may be an answer that clients leave out, with no text or calls."""
    message = message.get(REREAD, message)  # which has less text, if any
    return not (text_of(message.get("content")) or "").strip() and not calls_of(message)


def key_of_calls(calls: Calls) -> tuple[Hashable, ...]:
    """Return a key of calls that does not change if pydantic-ai wraps their arguments."""
    return tuple(map(_key_of_call, calls))


def _key_of_call(call: Mapping[str, Any]) -> Hashable:
    name, arguments = call["function"].get("name"), call["function"].get("arguments")
    read = arguments_of(arguments)
    if isinstance(read, Mapping) and [*read] == ["INVALID_JSON"]:
        read = read["INVALID_JSON"]
    return comparable(name), comparable(read)


def _same_reasoning(message: Message, entry: BranchEntry) -> bool:
    """Return whether the thinking of a message, or its handle, is the policy's."""
    if (handle := message.get(HANDLE)) and handle != entry.handle:
        return False
    if RESPELLED in message:  # exactly, unlike thinking, which clients may trim
        said = message.get("reasoning_content", "")
        return bool(said == entry.message.get("reasoning_content", ""))
    for key in ("reasoning_content", "reasoning"):
        said = message.get(key)
        if said and not (isinstance(said, str) and said.strip() == entry.reasoning):
            return False
    return True


def _same_calls(theirs: Calls, entry: BranchEntry) -> bool:
    if len(theirs) != len(entry.calls):
        return False
    for own, call, known in zip(calls_of(entry.message), theirs, entry.calls, strict=True):
        mine, function = own["function"], call["function"]
        if function == mine and isinstance(function.get("arguments"), str):
            continue  # two strings, so Python's `True == 1` does not matter
        if comparable_call(call) != known and not _wraps(function, mine):
            return False
    return True


def _wraps(function: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Return whether a call has arguments that are not an object, as pydantic-ai wraps them."""
    text = arguments_of(mine.get("arguments"))
    if not isinstance(text, str) or function.get("name") != mine.get("name"):
        return False
    return comparable(arguments_of(function.get("arguments"))) == comparable({"INVALID_JSON": text})
