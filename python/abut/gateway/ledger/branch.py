"""The branches of a rollout, which are its conversations, and which of them a request continues.

Invariant: each call is, as it was sampled, in every branch that continues from it, and exactly one
branch owns it, so over all branches a sampled token is trained once. Only the messages decide which
branch a request continues; ids choose between branches with equal messages.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from abut.gateway.ledger.agent_call import AgentCall
from abut.gateway.ledger.callers import NOBODY, Caller
from abut.gateway.ledger.comparable import KnownPrefix, SeenMessages, calls_of, names_of_calls
from abut.gateway.ledger.entry import BranchEntry, Dialect
from abut.gateway.ledger.matching import History, Match, call_at, keys_read, keys_returned, match
from abut.gateway.ledger.writer import Writer
from abut.messages import Message
from abut.rollout.conversation import Conversation
from abut.rollout.rollout import BranchCause


@dataclass(eq=False)
class LedgerBranch:
    """One conversation of a rollout.

    Attributes:
        frame: see `AgentRequest.frame`.
        writer: writes its messages.
        conversation: its tokens.
        cause: why the branch began; None for the first one.
        entries: its messages, as the client and the policy have them.
        calls: the calls whose samples are its turns.
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
    """The tool that each call names, by the call's id."""
    known: KnownPrefix = field(default_factory=KnownPrefix)
    """The client's spelling of its beginning."""
    own_ids: set[str] = field(default_factory=set)
    """Call ids that the policy wrote itself."""
    caller: Caller = NOBODY
    """The caller that sends its requests."""

    def forked(
        self, entries: int, conversation: Conversation, cause: BranchCause
    ) -> "LedgerBranch":
        """Return a branch that begins with the first `entries` of this one."""
        calls = sum(entry.ours for entry in self.entries[:entries])
        other = LedgerBranch(self.frame, self.writer, conversation, cause, calls=self.calls[:calls])
        other.caller = self.caller
        for entry in self.entries[:entries]:
            other._note(entry)
        other.own_ids, other.known = set(self.own_ids), self.known.first(entries)
        return other

    def asked_again(self, found: Match) -> "LedgerBranch":
        """Return a branch for a repetition of this branch's last request.

        Return this branch itself if it has no answer and no sample is being drawn.
        """
        if found.entries == len(self.entries):  # there is no answer yet
            if not self.sampling:
                return self
            at = len(self.conversation.trajectory)
        else:
            at = self.conversation.turns[found.turns].start
        return self.forked(found.entries, self.conversation.fork(at), "repeated")

    def say(self, history: History, found: Match | None = None) -> None:
        """Add a client's messages: those after the last answer that matched, or all of them."""
        said = 0 if found is None else found.answered_messages
        entry_of = [] if found is None else [*found.entry_of[:said]]
        for place in range(said, len(history.messages)):
            call = call_at(history, place, entry_of)
            entry_of.append(len(self.entries))
            message = history.messages[place]
            if place == len(self.entries) == len(self.known.messages):
                self.known.learn(place, message, ours=False)
            self._note(BranchEntry(message, answered_call=call, joints=self.writer.joints))

    def in_own_ids(self, history: History, found: Match) -> list[Message]:
        """Return the messages after the last answer that matched, with the gateway's call ids.

        The client may have given the calls other ids.
        """
        said = found.answered_messages
        messages = list(history.messages[said:])
        for k, message in enumerate(messages):
            answered = history.call_of(said + k)
            if answered is not None and answered[0] < said:
                of, number = answered
                call = calls_of(self.entries[found.entry_of[of]].message)[number]
                messages[k] = message | {"tool_call_id": call.get("id")}
        return messages

    def hear(self, call: AgentCall) -> None:
        """Add an answer of the policy."""
        answer = call.answered.result()
        self.calls.append(call)
        self.own_ids |= answer.own_ids
        joints = self.writer.joints
        self._note(
            BranchEntry(
                answer.message,
                ours=True,
                stop=call.request.stop,
                joints=joints,
                dialect=call.request.dialect,
                handle=answer.handle,
            )
        )

    def note_env_time(self) -> None:
        """Note how long the agent took since its last answer."""
        last = self.calls[-1]
        if last.heard_at is not None and not last.env_s:
            last.env_s = time.monotonic() - last.heard_at

    def _note(self, entry: BranchEntry) -> None:
        self.entries.append(entry)
        if entry.message.get("role") == "assistant":
            self.names |= names_of_calls(entry.message)

    @property
    def unanswered(self) -> bool:
        """True if it ends with a client's message."""
        return bool(self.entries) and not self.entries[-1].ours

    @property
    def delivered_calls(self) -> int:
        """How many calls there are, up to and including the last delivered one."""
        return max((k + 1 for k, call in enumerate(self.calls) if call.delivered), default=0)

    def agreement(self, messages: Sequence[Message], found: Match) -> tuple[int, int, int]:
        """Return how well the ids in a request agree with this branch, given that the texts agree.

        Returns:
            for the last answer: 1 if its token ids are ours, -1 if they are others, 0 if it has
            none; how many answers have calls with our ids; the number of that answer's delivery.
        """
        tokens = 0
        if found.last is not None:
            turn, place = found.last
            tokens = _same_tokens(messages[place], self.calls[turn])
        delivery = self.calls[found.turns - 1].delivery if found.turns else -1
        return tokens, found.same_ids, delivery


def seen_in(branches: Sequence[LedgerBranch], messages: list[Message]) -> SeenMessages:
    """Return the first messages of a request that were seen before, and reuse their objects.

    A rollout then holds each message once, however many requests repeat it.
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
    """The end of an answer, from which a request continues."""

    branch: LedgerBranch
    found: Match
    again: bool
    """True if it repeats the request that the branch got after `found.turns` answers."""


def find_continuation(
    branches: Sequence[LedgerBranch],
    frame: str,
    history: History,
    dialect: Dialect,
    *,
    learns: bool = True,
) -> Continuation | None:
    """Return the continuation with the longest history; None if no branch has an answer in it.

    Args:
        branches: of the rollout.
        frame: of the request, see `AgentRequest.frame`.
        history: of the request.
        dialect: of the request.
        learns: whether the branches keep the client's spelling of their beginning; False for a
            request that is not placed, so that it leaves no trace.
    """
    best: tuple[tuple[int, ...], Continuation] | None = None
    for branch in branches:
        if branch.frame != frame:
            continue
        found = match(branch.entries, history, dialect, branch.known if learns else None)
        whole = found.entries == len(branch.entries)
        again = found.messages == len(history.messages) and (
            branch.unanswered if whole else branch.entries[found.entries].ours
        )
        if not (found.turns or again):
            continue
        agreement = branch.agreement(history.messages, found)
        # A repeated request is placed where the first one was, so that the two samples are
        # siblings. Between branches with equal messages, ids decide, and then the latest delivery.
        rank = (again, found.turns, whole, *agreement)
        if best is None or rank >= best[0]:
            best = rank, Continuation(branch, found, again)
    return None if best is None else best[1]


def why_root(
    branches: Sequence[LedgerBranch], frame: str, history: History, dialect: Dialect
) -> BranchCause | None:
    """Return why a request begins a new conversation; None if it is the first.

    The request rewrote a conversation if the first message that differs is an answer of the policy,
    or is followed by one. Example answers that a client wrote itself do not count.
    """
    if not branches:
        return None
    alike = [branch for branch in branches if branch.frame == frame]
    if not alike:
        return "tools"
    common = 0
    for branch in alike:
        found = match(branch.entries, history, dialect, branch.known)
        if found.entries < len(branch.entries) and branch.entries[found.entries].ours:
            return "rewritten"
        common = max(common, found.messages)
    ours = [entry for branch in alike for entry in branch.entries if entry.ours]
    keys = {key for entry in ours if not entry.is_empty for key in keys_returned(entry)}
    behind = [m for m in history.messages[common:] if m["role"] == "assistant"]
    back = any(not keys.isdisjoint(keys_read(message, dialect)) for message in behind)
    return "rewritten" if back else "new"
