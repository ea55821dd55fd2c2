"""One message of a branch, and the messages of clients that are it.

Invariant: an edited message never matches. Some spellings of an answer mean the same in every
protocol; a `Dialect` adds the changes that the clients of its protocol are known to make to it.
`docs/agents.md` has the rules.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from abut.gateway.ledger.comparable import (
    CallPosition,
    arguments_of,
    calls_of,
    comparable,
    comparable_call,
    comparable_message,
    json_key,
    text_of,
)
from abut.messages import Message

Calls: TypeAlias = Sequence[Mapping[str, Any]]
"""Calls of functions, as a message has them."""

_NO_REWRITES_YET: Mapping[str, int] = {}
# The policy never fills these, so a message that does is not its answer.
_NEVER_OURS = ("refusal", "audio", "function_call")


class Dialect:
    """The changes that a protocol's clients make to an answer; this one knows none.

    Attributes:
        leaves_out_empty_turns: whether a client may leave out an answer without text and calls.
    """

    leaves_out_empty_turns = False

    def rewrite_of(
        self, text: str, calls: Calls, entry: "BranchEntry", *, same_calls: bool
    ) -> str | None:
        """Return the rule by which a message is this answer though they differ; None: it is not.

        Args:
            text: of the message, stripped.
            calls: of the message.
            entry: the answer.
            same_calls: whether both have the same calls.
        """
        return None

    def keys_returned(self, entry: "BranchEntry") -> Iterable[Hashable]:
        """Return more keys that `rewrite_of` may find an answer by; see `keys_returned`."""
        return ()

    def keys_read(self, text: str, calls: tuple[Hashable, ...]) -> Iterable[Hashable]:
        """Return more keys of a message that may be an answer; see `keys_read`."""
        return ()


NO_REWRITES = Dialect()


@dataclass
class BranchEntry:
    """One message of a branch: the policy's answer, or a message of the client's."""

    message: Message
    ours: bool = False
    stop: Sequence[str] = ()
    """The stop strings of the request that it answers."""
    answers: CallPosition | None = None
    """The call that a tool's message answers: the index of its entry, and its number there."""
    joints: Mapping[str, str | None] = field(default_factory=dict)
    """By role, the text that the row has between two text parts, see `Writer.joints`."""
    dialect: Dialect = NO_REWRITES
    """Of the request that it answers."""
    spelling: "Spelling | None" = field(default=None, compare=False, repr=False)
    """How a client wrote it last; None if it has not come back yet."""

    # Computed when a request is first compared with the entry: most messages that come back are
    # known, or equal as they stand, and need none of these.

    @cached_property
    def comparable(self) -> Hashable:
        """The comparable value of a client's message."""
        joint = self.joints.get(str(self.message.get("role")))
        return comparable_message(self.message, has_call=self.answers is not None, joint=joint)

    @cached_property
    def coarse(self) -> Hashable:
        """Equal where `comparable` is, however text parts are joined."""
        return coarse(self.message)

    @cached_property
    def text(self) -> str:
        """The stripped text of an answer."""
        return (text_of(self.message.get("content")) or "").strip()

    @cached_property
    def reasoning(self) -> str:
        """The stripped thinking of an answer."""
        return (self.message.get("reasoning_content") or "").strip()

    @cached_property
    def calls(self) -> tuple[Hashable, ...]:
        """The comparable values of an answer's calls."""
        return tuple(map(comparable_call, calls_of(self.message)))

    @cached_property
    def call_ids(self) -> Sequence[Any]:
        """The ids of an answer's calls."""
        return ids_of(calls_of(self.message))

    @property
    def is_empty(self) -> bool:
        """True for an answer without text and calls."""
        return self.ours and not self.text and not self.calls


@dataclass(frozen=True, eq=False, slots=True)
class Spelling:
    """A message as a client writes an entry, behind the messages that it writes before it.

    Branches that fork share their first entries, so the spellings of a rollout form a tree. A
    request that repeats known spellings is compared with them alone, by one look at each. That is
    sound only if all messages before are known too, because the ids of their calls give a tool's
    message its meaning; hence `before`.

    Attributes:
        before: of the message before; None for the first.
        message: of the client.
        key: equals the same message in another request.
        dialect: by whose rules the message is the entry.
        ours: whether the entry is an answer.
        count: how many messages there are up to and with this one.
        turns: how many of them are answers.
        rewrites: how many answers came back changed, by rule.
        same_ids: how many answers have calls with our ids.
        answer: the spelling of the last answer; None: this is the one, or there is none.
    """

    before: "Spelling | None"
    message: Message
    key: Any
    dialect: Dialect
    ours: bool = False
    count: int = 1
    turns: int = 0
    rewrites: Mapping[str, int] = field(default_factory=dict)
    same_ids: int = 0
    answer: "Spelling | None" = None

    @property
    def last_answer(self) -> "Spelling | None":
        """The spelling of the last answer; None if there is none."""
        return self if self.ours else self.answer


def spelled(
    before: Spelling | None,
    message: Message,
    dialect: Dialect,
    *,
    ours: bool = False,
    rule: str = "",
    same_ids: bool = False,
) -> Spelling:
    """Return the spelling of a message behind others.

    Args:
        before: of the message before.
        message: of the client.
        dialect: of the request.
        ours: whether it is an answer of the policy.
        rule: the rule by which a changed answer matched.
        same_ids: whether its calls have our ids.
    """
    count, turns, rewrites, ids = 0, 0, _NO_REWRITES_YET, 0
    if before is not None:
        count, turns, rewrites, ids = before.count, before.turns, before.rewrites, before.same_ids
    if rule:
        rewrites = {**rewrites, rule: rewrites.get(rule, 0) + 1}
    answer = None if before is None or ours else before.last_answer
    key = json_key(message)
    return Spelling(
        before,
        message,
        key,
        dialect,
        ours,
        count + 1,
        turns + ours,
        rewrites,
        ids + same_ids,
        answer,
    )


def rewrite_of(message: Message, entry: BranchEntry, dialect: Dialect) -> str | None:
    """Return `""` if a message is this answer, the rule if it was changed, None if it is not."""
    if message == entry.message:  # only texts are in ours, so Python's `True == 1` cannot mislead
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

    They are coarse: where `rewrite_of` matches a message, the two share a key with `keys_read`.
    """
    yield solid(entry.text), key_of_calls(calls_of(entry.message))
    yield from entry.dialect.keys_returned(entry)


def keys_read(message: Message, dialect: Dialect) -> Iterator[Hashable]:
    """Yield the keys of a message that may be an answer."""
    if (text := text_of(message.get("content"))) is None:
        return
    calls = key_of_calls(calls_of(message))
    yield solid(text), calls
    yield from dialect.keys_read(text, calls)


def is_left_out(message: Message) -> bool:
    """Return whether it may be an answer without text and calls, which some clients leave out."""
    return not (text_of(message.get("content")) or "").strip() and not calls_of(message)


def ids_of(calls: Calls) -> list[Any]:
    """Return the ids of calls."""
    return [call.get("id") for call in calls]


def solid(text: str) -> str:
    """Return a text without white space, which is the same however its parts are joined."""
    return "".join(text.split())


def coarse(message: Message) -> Hashable:
    """Return what two messages share if their comparable values are equal for some joint."""
    text = text_of(message.get("content"))
    return message.get("role"), None if text is None else solid(text)


def key_of_calls(calls: Calls) -> tuple[Hashable, ...]:
    """Return a key of calls, the same where pydantic-ai has wrapped their arguments."""
    return tuple(map(_key_of_call, calls))


def _key_of_call(call: Mapping[str, Any]) -> Hashable:
    name, arguments = call["function"].get("name"), call["function"].get("arguments")
    read = arguments_of(arguments)
    if isinstance(read, Mapping) and [*read] == ["INVALID_JSON"]:
        read = read["INVALID_JSON"]
    return comparable(name), comparable(read)


def _same_reasoning(message: Message, entry: BranchEntry) -> bool:
    """Return whether the thinking that a message has, if any, is ours."""
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
            continue  # two texts: Python's `True == 1` cannot mislead
        if comparable_call(call) != known and not _wraps(function, mine):
            return False
    return True


def _wraps(function: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Return whether a call has our arguments, no JSON object, wrapped as pydantic-ai does."""
    text = arguments_of(mine.get("arguments"))
    if not isinstance(text, str) or function.get("name") != mine.get("name"):
        return False
    return comparable(arguments_of(function.get("arguments"))) == comparable({"INVALID_JSON": text})
