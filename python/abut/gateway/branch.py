"""The branches of a rollout: its conversations, each a line of turns, and what they share.

Invariant: every call stands in the branches that go on from it, as it was sampled, and one of them
owns it: over all branches a sampled token is trained once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from abut._native import Columns
from abut.gateway.call import Call
from abut.gateway.known import Known, Seen
from abut.gateway.matching import Entry, History, Match, call_at
from abut.gateway.processors import Shown
from abut.gateway.values import calls_of, names_of_calls
from abut.messages import Message
from abut.rollout.conversation import Conversation, Heard
from abut.rollout.rollout import Branch as RecordedBranch
from abut.rollout.rollout import BranchCause

Which: TypeAlias = Literal["longest", "last"]


@dataclass(eq=False)
class Branch:
    """One conversation of a rollout.

    Attributes:
        frame: what it is written with, see `ChatRequest.frame`.
        shown: what writes it.
        conversation: its tokens.
        cause: why it is a branch of its own; None for the first.
        entries: its messages, as the client and the policy have them.
        calls: those that made its turns.
        sampling: whether a sample is being drawn at its end.
    """

    frame: str
    shown: Shown
    conversation: Conversation
    cause: BranchCause | None = None
    entries: list[Entry] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    sampling: bool = False
    names: dict[str, str] = field(default_factory=dict)
    """Of the tool that each call id has called."""
    known: Known = field(default_factory=Known)
    """How a client writes its beginning."""
    own_ids: set[str] = field(default_factory=set)
    """Call ids that the policy wrote itself."""

    def forked(self, entries: int, conversation: Conversation, cause: BranchCause) -> "Branch":
        """A branch that begins with so many entries of this one."""
        calls = sum(entry.ours for entry in self.entries[:entries])
        other = Branch(self.frame, self.shown, conversation, cause, calls=self.calls[:calls])
        for entry in self.entries[:entries]:
            other._note(entry)
        other.own_ids, other.known = set(self.own_ids), self.known.first(entries)
        return other

    def say(self, history: History, found: Match | None = None) -> None:
        """Note what a client said: all of it, or what is behind the last answer that was found."""
        said = 0 if found is None else found.behind_turn[1]
        stands = [] if found is None else [*found.stands[:said]]
        for place in range(said, len(history.messages)):
            call = call_at(history, place, stands)
            stands.append(len(self.entries))
            message = history.messages[place]
            if place == len(self.entries) == len(self.known.messages):
                self.known.learn(place, message, ours=False)
            self._note(Entry(message, answers=call, joints=self.shown.joints))

    def in_own_ids(self, history: History, found: Match) -> list[Message]:
        """What a client said behind the last answer that was found, with the ids of our calls.

        A client may have given them others.
        """
        said = found.behind_turn[1]
        messages = list(history.messages[said:])
        for k, message in enumerate(messages):
            answered = history.answered(said + k)
            if answered is not None and answered[0] < said:
                of, number = answered
                call = calls_of(self.entries[found.stands[of]].message)[number]
                messages[k] = message | {"tool_call_id": call.get("id")}
        return messages

    def hear(self, call: Call) -> None:
        """Note what the policy answered."""
        answer = call.answered.result()
        self.calls.append(call)
        self.own_ids |= answer.own_ids
        joints = self.shown.joints
        self._note(Entry(answer.message, ours=True, stop=call.request.stop, joints=joints))

    def _note(self, entry: Entry) -> None:
        self.entries.append(entry)
        if entry.message.get("role") == "assistant":
            self.names |= names_of_calls(entry.message)

    @property
    def unanswered(self) -> bool:
        """Whether it ends on what a client said."""
        return bool(self.entries) and not self.entries[-1].ours

    @property
    def delivered(self) -> int:
        """So many of its calls, from the first on, up to the last one that somebody got."""
        return max((k + 1 for k, call in enumerate(self.calls) if call.delivered), default=0)

    def agreement(self, messages: Sequence[Message], found: Match) -> tuple[int, int, int]:
        """How well what a request says of ids agrees with this branch, as far as texts do.

        Returns:
            for the last answer, 1 where its token ids are ours, -1 where they are not; how many of
            its calls have our ids; which delivery that answer was.
        """
        tokens = 0
        if found.last is not None:
            turn, place = found.last
            tokens = _same_tokens(messages[place], self.calls[turn])
        delivery = self.calls[found.turns - 1].delivered_as if found.turns else -1
        return tokens, found.same_ids, delivery


def seen_in(branches: Sequence[Branch], messages: list[Message]) -> Seen:
    """Return what of a request was seen before, and put the messages that were in its place.

    So a rollout holds each message once, however many requests repeat it.
    """
    count, known = 0, None
    for branch in branches:
        if (common := branch.known.common(messages)) and common >= count:
            count, known = common, branch.known
    if known is None:
        return Seen()
    messages[:count] = known.messages[:count]
    return known.seen(count)


def _same_tokens(message: Message, call: Call) -> int:
    said = message.get("generation_token_ids")
    if not isinstance(said, list) or not said or call.sample is None:
        return 0
    return 1 if said == call.sample.ids.tolist() else -1


def row_of(branches: Sequence[Branch], which: Which) -> Branch | None:
    """The branch that becomes the row: of those that somebody got a sample of."""
    heard = [branch for branch in branches if branch.delivered]
    if not heard:
        return None
    if which == "last":
        return max(heard, key=_last_delivery)
    return max(heard, key=lambda branch: (_heard_tokens(branch), _last_delivery(branch)))


def _last_delivery(branch: Branch) -> int:
    return branch.calls[branch.delivered - 1].delivered_as


def _heard_tokens(branch: Branch) -> int:
    return sum(call.sampled_tokens for call in branch.calls[: branch.delivered])


def others(branches: Sequence[Branch], row: Branch | None) -> list[RecordedBranch]:
    """What the row does not hold: one branch for each that sampled something of its own."""
    owned = {id(call) for call in row.calls[: row.delivered]} if row else set()
    found: list[RecordedBranch] = []
    # A branch that another one goes on from is a part of it.
    for branch in sorted(branches, key=lambda branch: -len(branch.calls)):
        ends = sorted({branch.delivered, len(branch.calls)})
        for end in ends:
            own = [k for k, call in enumerate(branch.calls[:end]) if id(call) not in owned]
            owned |= {id(branch.calls[k]) for k in own}
            if any(branch.calls[k].sampled_tokens for k in own):
                cause = branch.cause or (None if row is None else row.cause)
                found.append(_recorded(branch, own[0], end, cause))
    return found


def _recorded(branch: Branch, begin: int, end: int, cause: BranchCause | None) -> RecordedBranch:
    """The turns from `begin` to `end`, behind what stands before them as a prompt."""
    trajectory = branch.conversation.trajectory
    turns = branch.conversation.turns
    while turns[begin].start == turns[begin].end:
        begin += 1
    last = max(k for k in range(begin, end) if turns[k].end > turns[k].start)
    start, stop = turns[begin].start, turns[last].end
    ids, mask = trajectory.ids, trajectory.sampled_mask
    logprobs: Any = np.nan_to_num(trajectory.logprobs[start:stop], nan=0.0)
    columns = Columns(
        prompt_ids=ids[:start],
        completion_ids=ids[start:stop],
        logprobs=logprobs,
        env_mask=mask[start:stop],
    )
    return RecordedBranch(
        columns,
        provenance=trajectory.provenance[:stop],
        cause=cause,
        delivered=end <= branch.delivered,
        versions=_versions(branch.calls[begin : last + 1], turns[begin : last + 1]),
    )


def _versions(calls: Sequence[Call], turns: Sequence[Heard]) -> Any:
    """As `Rollout.versions`, from the first of these turns to the last."""
    start = turns[0].start
    of_tokens = np.full(turns[-1].end - start, -1, np.int64)
    for call, turn in zip(calls, turns, strict=True):
        if call.sample is None or call.sample.versions is None:
            return ()
        of_tokens[turn.start - start : turn.end - start] = call.sample.versions
    return of_tokens
