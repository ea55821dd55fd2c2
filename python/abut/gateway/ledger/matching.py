"""Whether what a client sends back is what was said: eleven rules, each of them exact.

Invariant: a history that was edited is never taken for the one that was said. Rules 1 to 5 and 11
say which ways of writing mean the same. Rules 6 to 10 know what certain clients do to a message of
the policy; they are counted, since such a client shows its history otherwise elsewhere, and they
can be switched off. `docs/agents.md` has the table of them.
"""

import ast
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Literal, TypeAlias, get_args

from abut.gateway.ledger.comparable import (
    CallIds,
    CallPosition,
    arguments_of,
    calls_of,
    comparable,
    comparable_call,
    comparable_message,
    text_of,
)
from abut.gateway.ledger.known_prefix import KnownPrefix, SeenMessages
from abut.messages import Message

Rewrite: TypeAlias = Literal[
    "text_lost", "stop_put_back", "calls_as_text", "code_again", "empty_turn_left_out"
]
"""What a client is known to do to a message of the policy:

- text_lost: leaves out the text beside calls (crewai)
- stop_put_back: writes the stop string back behind the text (smolagents' `CodeAgent`)
- calls_as_text: writes calls as Python text into the content (smolagents' `ToolCallingAgent`)
- code_again: repeats the code in the text as a call (smolagents' `CodeAgent`)
- empty_turn_left_out: leaves out a turn without text and calls (pydantic-ai, OpenAI Agents)
"""

REWRITES: tuple[Rewrite, ...] = get_args(Rewrite)

_NOTHING = SeenMessages()
_NO_JOINTS: Mapping[str, str | None] = {}
_NEVER_OURS = ("refusal", "audio", "function_call")
_CALLS = "\nCalling tools:\n"


@dataclass
class BranchEntry:
    """One message of a branch: the policy's answer, or what a client said."""

    message: Message
    ours: bool = False
    stop: Sequence[str] = ()
    """The stop strings of the request that it answers."""
    answers: CallPosition | None = None
    """The call that a tool's message answers: the place of its entry, and its number there."""
    joints: Mapping[str, str | None] = field(default_factory=dict)
    """By role, what stands in the row between two text parts, see `Writer.joints`."""

    # Made when a request is first compared with it: most that come back are known or the same.

    @cached_property
    def comparable(self) -> Hashable:
        """Of a message that is not the policy's."""
        joint = self.joints.get(str(self.message.get("role")))
        return comparable_message(self.message, has_place=self.answers is not None, joint=joint)

    @cached_property
    def coarse(self) -> Hashable:
        """Equal where `comparable` is, in whatever way parts are joined."""
        return _coarse(self.message)

    @cached_property
    def text(self) -> str:
        """Of an answer."""
        return (text_of(self.message.get("content")) or "").strip()

    @cached_property
    def reasoning(self) -> str:
        """Of an answer."""
        return (self.message.get("reasoning_content") or "").strip()

    @cached_property
    def calls(self) -> tuple[Hashable, ...]:
        """The forms of an answer's calls."""
        return tuple(map(comparable_call, calls_of(self.message)))

    @cached_property
    def call_ids(self) -> Sequence[Any]:
        """Those of an answer's calls."""
        return _ids(calls_of(self.message))

    @property
    def is_empty(self) -> bool:
        """Whether it is an answer without text and calls."""
        return self.ours and not self.text and not self.calls


class History:
    """The messages of one request, and what each is compared by."""

    def __init__(
        self,
        messages: Sequence[Message],
        seen: SeenMessages = _NOTHING,
        joints: Mapping[str, str | None] = _NO_JOINTS,
    ) -> None:
        """Look at what is new.

        Args:
            messages: of the request.
            seen: what of them was seen before.
            joints: by role, what stands in the row between two text parts, see `Writer.joints`.
        """
        self.messages = messages
        self._joints = joints
        self._forms: dict[int, Hashable] = {}
        ids = CallIds(seen.ids)
        self._seen = seen
        self._answers: list[CallPosition | None] = []
        for at, message in enumerate(islice(messages, seen.messages, None), seen.messages):
            self._answers.append(ids.place(message))
            ids.add(message, at)

    def answered(self, place: int) -> CallPosition | None:
        """The call that a message of a tool answers, in the ids of this request."""
        seen = self._seen
        if place < seen.messages:
            return seen.answers[place]
        return self._answers[place - seen.messages]

    def has_answer_from(self, place: int) -> bool:
        """Whether a message from there on is an assistant's."""
        return any(message.get("role") == "assistant" for message in self.messages[place:])

    def comparable(self, place: int) -> Hashable:
        """Of a message that is not the policy's; answers may come with thousands of token ids."""
        if place not in self._forms:
            message = self.messages[place]
            self._forms[place] = comparable_message(
                message,
                has_place=self.answered(place) is not None,
                joint=self._joints.get(str(message.get("role"))),
            )
        return self._forms[place]

    def coarse(self, place: int) -> Hashable:
        """Equal to that of an entry where `comparable` is, in whatever way parts are joined."""
        return _coarse(self.messages[place])


@dataclass(frozen=True)
class Match:
    """How far a branch and a request agree."""

    entries: int
    """So many entries of the branch."""
    messages: int
    """So many messages of the request."""
    turns: int
    """So many answers among the entries."""
    behind_turn: tuple[int, int]
    """Entries and messages up to and with the last of these."""
    rewrites: Mapping[str, int]
    stands: Sequence[int]
    """The place of the entry that each of the messages is."""
    same_ids: int
    """So many answers whose calls have our ids."""
    last: tuple[int, int] | None
    """Of the last answer that was not left out: which turn it is, and which message."""


def match(
    entries: Sequence[BranchEntry],
    history: History,
    rewrites: Collection[str],
    known: KnownPrefix | None = None,
) -> Match:
    """Find how far a branch is the beginning of a request.

    Args:
        entries: of the branch.
        history: of the request.
        rewrites: the rules by which an answer may have come back changed.
        known: how this client writes the beginning of the branch, which is not compared again;
            what is found is added to it.
    """
    messages, known = history.messages, KnownPrefix() if known is None else known
    at = place = known.common(messages)
    turns, behind, found, same_ids = known.compared(place)
    behind_turn, last = (behind, behind), (turns - 1, behind - 1) if turns else None
    stands = list(range(place))
    shared = (at, turns, behind_turn)  # up to the last entry that the request has
    may_leave_out = "empty_turn_left_out" in rewrites
    for entry in islice(entries, at, None):
        message = messages[place] if place < len(messages) else None
        if message is None:
            break
        how: str | None = None
        if entry.ours:
            how = rewrite_of(message, entry, rewrites)
        elif history.comparable(place) == entry.comparable and entry.answers == call_at(
            history, place, stands
        ):
            how = ""
        if how is not None:
            same = entry.ours and bool(entry.call_ids) and _ids(calls_of(message)) == entry.call_ids
            if at == place:
                known.learn(place, message, ours=entry.ours, rule=how, same_ids=same)
            if entry.ours:
                same_ids, last = same_ids + same, (turns, place)
            stands.append(at)
            place += 1
        elif entry.is_empty and may_leave_out:
            how = "empty_turn_left_out"
        else:
            break
        at += 1
        if entry.ours:
            if how:
                found[how] = found.get(how, 0) + 1
            turns += 1
            behind_turn = (at, place)
        if how != "empty_turn_left_out":
            shared = (at, turns, behind_turn)
    # Behind all that is shared, an answer would stand in the place of the one that was left out.
    if at > shared[0] and history.has_answer_from(place):
        found["empty_turn_left_out"] -= turns - shared[1]
        at, turns, behind_turn = shared
    rewrites_of = {rule: count for rule, count in found.items() if count}
    return Match(at, place, turns, behind_turn, rewrites_of, stands, same_ids, last)


def call_at(history: History, place: int, stands: Sequence[int]) -> CallPosition | None:
    """The call that a message answers, where `stands` are the places of those before it."""
    call = history.answered(place)
    return None if call is None else (stands[call[0]], call[1])


def rewrite_of(message: Message, entry: BranchEntry, rewrites: Collection[str]) -> str | None:
    """How a message is this answer of the policy: `""` as it is, else by which rule; None: not."""
    if message == entry.message:  # there are only texts in ours: nothing equals a bool
        return ""
    if message.get("role") != "assistant" or any(message.get(key) for key in _NEVER_OURS):
        return None
    text = text_of(content := message.get("content"))  # clients cut an answer anywhere
    if text is not None and text.strip() != entry.text:
        text = text_of(content, entry.joints.get("assistant", ""))
    if text is None or not _same_reasoning(message, entry):
        return None
    text = text.strip()
    theirs = calls_of(message)
    if len(theirs) != len(message.get("tool_calls") or ()):
        return None
    if not _same_calls(theirs, entry):
        as_text = "calls_as_text" in rewrites and entry.calls and not theirs
        return "calls_as_text" if as_text and text == _with_calls(entry) else None
    if text == entry.text:
        return ""
    if not text:
        lost = "text_lost" in rewrites and theirs and _ids(theirs) == _ids(calls_of(entry.message))
        return "text_lost" if lost else None
    wholes = [entry.text]
    if "stop_put_back" in rewrites:
        said = text_of(entry.message.get("content")) or ""
        wholes += [(said + stop).strip() for stop in entry.stop]
        if text in wholes[1:]:
            return "stop_put_back"
    if "code_again" in rewrites and not theirs and any(_repeats(text, whole) for whole in wholes):
        return "code_again"
    return None


def keys_returned(entry: BranchEntry) -> Iterator[Hashable]:
    """The forms in which `rewrite_of` may find an answer: it shares one with `keys_read`."""
    text, calls = entry.text, tuple(map(_call_form, calls_of(entry.message)))
    yield _solid(text), calls
    if calls:
        yield "", calls
        yield _solid(_with_calls(entry)), ()
    said = text_of(entry.message.get("content")) or ""
    for stop in entry.stop:
        yield _solid(said + stop), calls


def keys_read(message: Message) -> Iterator[Hashable]:
    """The forms in which a message may be an answer, coarser than `rewrite_of`."""
    if (text := text_of(message.get("content"))) is None:
        return
    calls = tuple(map(_call_form, calls_of(message)))
    yield _solid(text), calls
    if not calls and _CALLS in text:  # the code of an answer, behind it
        yield _solid(text.rpartition(_CALLS)[0]), ()


def _coarse(message: Message) -> Hashable:
    text = text_of(message.get("content"))
    return message.get("role"), None if text is None else _solid(text)


def _solid(text: str) -> str:
    """A text without white space: however its parts are joined, it stays the same."""
    return "".join(text.split())


def is_left_out(message: Message) -> bool:
    """Return whether it may be an answer without text and calls, which some clients leave out."""
    return not (text_of(message.get("content")) or "").strip() and not calls_of(message)


def _call_form(call: Mapping[str, Any]) -> Hashable:
    """The form of a call, the same where pydantic-ai has wrapped its arguments."""
    name, arguments = call["function"].get("name"), call["function"].get("arguments")
    read = arguments_of(arguments)
    if isinstance(read, Mapping) and [*read] == ["INVALID_JSON"]:
        read = read["INVALID_JSON"]
    return comparable(name), comparable(read)


def _same_reasoning(message: Message, entry: BranchEntry) -> bool:
    """Whether what it says of the thinking, if anything, is ours."""
    for key in ("reasoning_content", "reasoning"):
        said = message.get(key)
        if said and not (isinstance(said, str) and said.strip() == entry.reasoning):
            return False
    return True


def _same_calls(theirs: Sequence[Mapping[str, Any]], entry: BranchEntry) -> bool:
    if len(theirs) != len(entry.calls):
        return False
    for own, call, known in zip(calls_of(entry.message), theirs, entry.calls, strict=True):
        mine, function = own["function"], call["function"]
        if function == mine and isinstance(function.get("arguments"), str):
            continue  # two texts: nothing in them is a bool
        if comparable_call(call) != known and not _wraps(function, mine):
            return False
    return True


def _wraps(function: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Whether they are arguments that are no object, in the one that pydantic-ai makes of them."""
    text = arguments_of(mine.get("arguments"))
    if not isinstance(text, str) or function.get("name") != mine.get("name"):
        return False
    return comparable(arguments_of(function.get("arguments"))) == comparable({"INVALID_JSON": text})


def _ids(calls: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [call.get("id") for call in calls]


def _with_calls(entry: BranchEntry) -> str:
    """What smolagents' `ToolCallingAgent` makes of an answer that calls tools."""
    calls = [
        {
            "id": call.get("id"),
            "type": "function",
            "function": {
                "name": call["function"].get("name"),
                "arguments": arguments_of(call["function"].get("arguments")),
            },
        }
        for call in calls_of(entry.message)
    ]
    return (entry.text + _CALLS + repr(calls)).strip()


_NUMBERED = re.compile(r"call_\d+")
_INTERPRETER = "python_interpreter"


def _repeats(text: str, whole: str) -> bool:
    """Whether it is what smolagents' `CodeAgent` makes of an answer: it, and its code as a call."""
    head = whole + _CALLS
    if not text.startswith(head):
        return False
    written = text[len(head) :]
    try:
        calls = ast.literal_eval(written)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    if repr(calls) != written or not isinstance(calls, list) or len(calls) != 1:
        return False
    call = calls[0]
    if not isinstance(call, dict) or set(call) != {"id", "type", "function"}:
        return False
    function = call["function"]
    if not isinstance(function, dict) or set(function) != {"name", "arguments"}:
        return False
    code = function["arguments"]
    return (
        call["type"] == "function"
        and _NUMBERED.fullmatch(str(call["id"])) is not None
        and function["name"] == _INTERPRETER
        and isinstance(code, str)
        and bool(code.strip())
        and code.strip() in whole
    )
