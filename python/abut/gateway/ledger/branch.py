"""The branches of a rollout: its conversations, each a line of turns, and what they share.

Invariant: every call stands in the branches that go on from it, as it was sampled, and one of them
owns it: over all branches a sampled token is trained once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from abut.gateway.ledger.agent_call import AgentCall
from abut.gateway.ledger.comparable import calls_of, names_of_calls
from abut.gateway.ledger.known_prefix import KnownPrefix, SeenMessages
from abut.gateway.ledger.matching import (
    BranchEntry,
    History,
    Match,
    call_at,
    keys_read,
    keys_returned,
    match,
)
from abut.gateway.ledger.writer import Writer
from abut.messages import Message
from abut.rollout.conversation import Conversation
from abut.rollout.rollout import BranchCause


@dataclass(eq=False)
class LedgerBranch:
    """One conversation of a rollout.

    Attributes:
        frame: what it is written with, see `AgentRequest.frame`.
        shown: what writes it.
        conversation: its tokens.
        cause: why it is a branch of its own; None for the first.
        entries: its messages, as the client and the policy have them.
        calls: those that made its turns.
        sampling: whether a sample is being drawn at its end.
    """

    frame: str
    writer: Writer
    conversation: Conversation
    cause: BranchCause | None = None
    entries: list[BranchEntry] = field(default_factory=list)
    calls: list[AgentCall] = field(default_factory=list)
    sampling: bool = False
    names: dict[str, str] = field(default_factory=dict)
    """Of the tool that each call id has called."""
    known: KnownPrefix = field(default_factory=KnownPrefix)
    """How a client writes its beginning."""
    own_ids: set[str] = field(default_factory=set)
    """Call ids that the policy wrote itself."""

    def forked(
        self, entries: int, conversation: Conversation, cause: BranchCause
    ) -> "LedgerBranch":
        """A branch that begins with so many entries of this one."""
        calls = sum(entry.ours for entry in self.entries[:entries])
        other = LedgerBranch(self.frame, self.writer, conversation, cause, calls=self.calls[:calls])
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
            self._note(BranchEntry(message, answers=call, joints=self.writer.joints))

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

    def hear(self, call: AgentCall) -> None:
        """Note what the policy answered."""
        answer = call.answered.result()
        self.calls.append(call)
        self.own_ids |= answer.own_ids
        joints = self.writer.joints
        self._note(BranchEntry(answer.message, ours=True, stop=call.request.stop, joints=joints))

    def _note(self, entry: BranchEntry) -> None:
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


def seen_in(branches: Sequence[LedgerBranch], messages: list[Message]) -> SeenMessages:
    """Return what of a request was seen before, and put the messages that were in its place.

    So a rollout holds each message once, however many requests repeat it.
    """
    count, known = 0, None
    for branch in branches:
        if (common := branch.known.common(messages)) and common >= count:
            count, known = common, branch.known
    if known is None:
        return SeenMessages()
    messages[:count] = known.messages[:count]
    return known.seen(count)


def _same_tokens(message: Message, call: AgentCall) -> int:
    said = message.get("generation_token_ids")
    if not isinstance(said, list) or not said or call.sample is None:
        return 0
    return 1 if said == call.sample.ids.tolist() else -1


class Continuation(NamedTuple):
    """Where a request goes on.

    `again`: it asks once more what the branch was asked behind `found.turns` answers. `stale`: the
    token ids that it names for the last of them are others.
    """

    branch: LedgerBranch
    found: Match
    again: bool
    stale: bool


def find_continuation(
    branches: Sequence[LedgerBranch], frame: str, history: History, rewrites: Collection[str]
) -> Continuation | None:
    """The branch that has most of the history; None where none has an answer of it.

    Args:
        branches: those of the rollout.
        frame: what the request is written with, see `AgentRequest.frame`.
        history: its messages.
        rewrites: the rules by which an answer may have come back changed.
    """
    best: tuple[tuple[int, ...], Continuation] | None = None
    for branch in branches:
        if branch.frame != frame:
            continue
        found = match(branch.entries, history, rewrites, branch.known)
        whole = found.entries == len(branch.entries)
        rest = branch.entries[found.entries :]
        ended = found.messages == len(history.messages)
        again = ended and (bool(rest) and rest[0].ours if not whole else branch.unanswered)
        if not (found.turns or again):
            continue
        agreement = branch.agreement(history.messages, found)
        rank = (again, found.turns, whole, *agreement)
        if best is None or rank >= best[0]:
            best = rank, Continuation(branch, found, again, agreement[0] < 0)
    return None if best is None else best[1]


def why_root(
    branches: Sequence[LedgerBranch], frame: str, history: History, rewrites: Collection[str]
) -> BranchCause | None:
    """Return why a request begins a conversation anew; None where it is the first.

    It has rewritten one where an answer of the policy stood right behind what the two have in
    common, or comes back behind it. Example answers of a client's own say nothing.
    """
    if not branches:
        return None
    alike = [branch for branch in branches if branch.frame == frame]
    if not alike:
        return "tools"
    common = 0
    for branch in alike:
        found = match(branch.entries, history, rewrites, branch.known)
        if found.entries < len(branch.entries) and branch.entries[found.entries].ours:
            return "rewritten"
        common = max(common, found.messages)
    ours = [entry for branch in alike for entry in branch.entries if entry.ours]
    forms = {
        comparable for entry in ours if not entry.is_empty for comparable in keys_returned(entry)
    }
    behind = [m for m in history.messages[common:] if m["role"] == "assistant"]
    back = any(not forms.isdisjoint(keys_read(message)) for message in behind)
    return "rewritten" if back else "new"
