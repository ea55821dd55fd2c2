"""The entries of a branch, and a dialect's rules for answers in a client's history.

Invariant: an entry never changes. The values by which it is compared are computed once, at the
first comparison.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

from abut.gateway.ledger.comparable import (
    CallPosition,
    calls_of,
    comparable_call,
    comparable_message,
    text_of,
    texts_and_images,
)
from abut.messages import Message

Calls: TypeAlias = Sequence[Mapping[str, Any]]
"""Calls of functions, as a message has them."""

LEFT_OUT = "empty_turn_left_out"
"""The rewrite of a client that leaves out an answer without text and calls."""

HANDLE = "reasoning_handle"
"""The key of a message with a handle of its reasoning, see `PolicyAnswer.handle`."""
REORDERED = "reordered"
"""The key of a message whose parts are not in the order of an answer's parts."""
RESPELLED = "respelled"
"""The key of a message that a dialect read with a rewrite; the value is the rule."""
REREAD = "reread"
"""The key of a message with a second reading; the value is the message read that way."""
OWN_KEYS = (HANDLE, REORDERED, RESPELLED, REREAD)
"""Keys of messages that dialects set themselves."""


class Dialect:
    """The changes that a protocol's clients make to an answer; this base class has no rules.

    Args:
        rewrites: the names of the rules that apply; other names are ignored. None: all rules of the
            dialect.

    Attributes:
        known_rewrites: the names of its rules.
        rewrites: the names of the rules that apply.
        id_prefix: the beginning of the ids of its answers.
        places_system: whether system messages are moved to where the template can show them. Not
            for chat completions, whose clients use roles as a template has them: a server that
            renders their messages refuses what the template refuses and moves what it moves, and
            training must use the prompt that is sampled from later. Of 74 public templates, 52 show
            a system message after the first user message unchanged, 16 to 20 refuse one there, and
            6 move it.
    """

    known_rewrites: ClassVar[Sequence[str]] = ()
    id_prefix: ClassVar[str] = "chatcmpl-"
    places_system: ClassVar[bool] = False

    def __init__(self, rewrites: Collection[str] | None = None) -> None:
        known = frozenset(self.known_rewrites)
        self.rewrites = known if rewrites is None else known.intersection(rewrites)

    def rewrite_of(
        self, text: str, calls: Calls, entry: "BranchEntry", *, same_calls: bool
    ) -> str | None:
        """Return the rule by which a changed message is this answer; None if it is not.

        The rule is `""` if they differ only in spelling, which is not counted.

        Args:
            text: of the message, stripped.
            calls: of the message.
            entry: the answer.
            same_calls: whether both have the same calls.
        """
        return None

    def keys_returned(self, entry: "BranchEntry") -> Iterable[Hashable]:
        """Return more keys by which `rewrite_of` may find an answer; see `keys_returned`."""
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
    answered_call: CallPosition | None = None
    """The call that a tool's message answers: the index of its entry, and its number there."""
    joints: Mapping[str, str | None] = field(default_factory=dict)
    """By role, the text that joins two text parts in the row, see `Writer.joints`."""
    dialect: Dialect = NO_REWRITES
    """The dialect of the request that it answers."""
    handle: str = ""
    """The handle of an answer's reasoning."""

    # Computed at the first comparison with a request. Most messages in a history are known or equal
    # unchanged, so they do not need these values.

    @cached_property
    def comparable(self) -> Hashable:
        """The comparable value of a client's message."""
        joint = self.joints.get(str(self.message.get("role")))
        return comparable_message(
            self.message, has_call=self.answered_call is not None, joint=joint
        )

    @cached_property
    def coarse(self) -> Hashable:
        """Equal where `comparable` is equal, however text parts are joined."""
        return coarse_key(self.message)

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


def ids_of(calls: Calls) -> list[Any]:
    """Return the ids of calls."""
    return [call.get("id") for call in calls]


def without_space(text: str) -> str:
    """Return text without white space, which is the same however its parts are joined."""
    return "".join(text.split())


def coarse_key(message: Message) -> Hashable:
    """Return a key that is the same however a message's text is cut into parts."""
    said = texts_and_images(message.get("content"))
    if said is None:
        return message.get("role"), None
    texts = "".join(part for part in said if isinstance(part, str))
    images = tuple(part.hash for part in said if not isinstance(part, str))
    return message.get("role"), without_space(texts), images
