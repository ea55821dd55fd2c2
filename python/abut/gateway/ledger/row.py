"""A rollout's row, made from one branch of its ledger, and its other branches.

Invariant: row and branches hold each sample once. A sample that the agent did not receive is never
in the row; one that it discarded in favour of another is in the row only if there is nothing else.
"""

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from abut._native import Columns
from abut.agents.protocol import AgentResult
from abut.gateway.ledger.agent_call import AgentCall
from abut.gateway.ledger.branch import LedgerBranch
from abut.gateway.ledger.callers import Caller
from abut.gateway.ledger.dropped_images import dropped_images
from abut.gateway.ledger.ledger import Ledger
from abut.messages import container_copy
from abut.rollout.config import BranchChoice
from abut.rollout.image_spans import images_before
from abut.rollout.named_rewards import (
    Auxiliary,
    conversation_name,
    is_auxiliary,
    reward_key,
)
from abut.rollout.rollout import Branch, BranchCause, Rollout, StopReason, TurnRecord

LIMITS = (
    StopReason.MAX_TURNS,
    StopReason.MAX_CALLS,
    StopReason.MAX_ROLLOUT_TOKENS,
    StopReason.MAX_COMPLETION_TOKENS,
    StopReason.MAX_CONTEXT_TOKENS,
    StopReason.DEADLINE,
)
"""The limits that an agent hears of as a full context."""

DRAWS_ROW = -1
"""A call number that no agent uses; its seed draws the row."""


def limit_of(ledger: Ledger) -> StopReason | None:
    """Return the limit that a rollout's agent reached last, by a refusal or by a cut answer.

    Clients such as openai's `.parse()` and instructor raise in both cases, so neither is a failure
    of the agent.
    """
    if ledger.refused in LIMITS:
        return ledger.refused
    of_all = ledger.allowance
    for branch in ledger.branches:
        if not branch.calls or not _was_cut(branch.calls[-1], ledger.calls):
            continue
        for allowance in (branch.conversation.allowance, of_all):
            if allowance.tokens < 1 and allowance.reason is not StopReason.MAX_CALLS:
                return allowance.reason
    return None


def _was_cut(call: AgentCall, calls: Sequence[AgentCall]) -> bool:
    """Return whether an answer was cut, and the agent has made no call since it got that answer.

    If it has made another call, its error has another cause. Calls concurrent with the cut one do
    not count, because the agent did not know about the cut yet.
    """
    assert call.sample is not None
    answered_at = call.asked_at + call.generate_s
    is_last = all(other.asked_at <= answered_at for other in calls)
    return is_last and call.sample.finish_reason == "length"


@dataclass(frozen=True)
class RowChoice:
    """The choice of the conversation that becomes a rollout's row.

    Attributes:
        branch: as `RolloutConfig.branch`; if all are trained, the row is the longest one.
        by_tokens: "random" draws a row in proportion to its sampled tokens, instead of each row
            equally often.
        seed: used by "random".
        auxiliary: see `RolloutConfig.auxiliary`; "random" never draws conversations that are left
            out.
    """

    branch: BranchChoice | None = None
    by_tokens: bool = False
    seed: int = 0
    auxiliary: Auxiliary = "train"


class BranchSpan(NamedTuple):
    """The calls of a branch that make a row; everything before them is the row's prompt."""

    branch: LedgerBranch
    begin: int
    end: int
    followed: bool = True
    """See `Branch.followed`."""

    looks_auxiliary: bool = False
    """See `is_auxiliary`."""

    @property
    def calls(self) -> Sequence[AgentCall]:
        """The calls from `begin` to `end`."""
        return self.branch.calls[self.begin : self.end]

    @property
    def delivered(self) -> bool:
        """True if the agent received the samples."""
        return self.end <= self.branch.delivered_calls

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that the row trains."""
        return sum(call.sampled_tokens for call in self.calls)


def fill(rollout: Rollout, ledger: Ledger | None, choice: RowChoice, result: AgentResult) -> None:
    """Fill a rollout from its ledger.

    Args:
        rollout: has its id, and the messages of its task.
        ledger: a ledger that no longer changes; None if it may still change.
        choice: of the conversation that becomes the row.
        result: of the agent.
    """
    rollout.reward, rollout.extras = result.reward, result.extras
    rollout.measured = result.measured
    rollout.rewards, rollout.names = result.rewards, result.names
    if ledger is not None:
        rollout.asked_by = frozenset(ledger.callers.asked_by)
        rollout.client_rewrites = dict(ledger.client_rewrites)
        rollout.tool_choice_unmet = ledger.tool_choice_unmet
        row, others = divide(ledger.branches, choice, result)
        cause = None if row is None else row.branch.cause
        rollout.dropped_images = dropped_images(ledger.branches)
        rollout.branches = [_recorded(span, span.branch.cause or cause) for span in others]
        rollout.stop_reason = StopReason.ENV_DONE
        if ledger.refused is StopReason.EMPTY_SAMPLE:
            rollout.stop_reason = ledger.refused
        elif (limit := limit_of(ledger)) is not None:
            rollout.stop_reason = limit
        if row is not None:
            _fill_row(rollout, row)
    if result.messages is not None:
        rollout.messages = container_copy([dict(message) for message in result.messages])
        for turn in rollout.turns:
            turn.message = None


def _fill_row(rollout: Rollout, row: BranchSpan) -> None:
    branch = row.branch
    talk = branch.conversation.fork(branch.conversation.turns[row.end - 1].end)
    whole = not row.begin
    rollout.columns = talk.trajectory.columns() if whole else _columns(branch, row.begin, row.end)
    rollout.prompt_ids = rollout.columns.prompt_ids
    rollout.provenance = talk.trajectory.provenance
    rollout.images = talk.images
    rollout.name, rollout.session = branch.caller.name, branch.caller.session
    rollout.turns = [_record(call) for call in row.calls]
    rollout.turns_before = [_record(call) for call in branch.calls[: row.begin]]
    rollout.tools = _tools(branch)
    rollout.seams, rollout.messages = talk.seams, talk.messages
    rollout.control_spellings = talk.control_spellings


def _tools(branch: LedgerBranch) -> Sequence[Any]:
    return json.loads(branch.frame)[0] or ()


def _record(call: AgentCall) -> TurnRecord:
    turn, sample = call.turn, call.sample
    assert turn is not None
    assert sample is not None
    turn.record.note_sample(sample, call.generate_s)
    turn.record.env_s = call.env_s
    answer = call.answered.result()
    turn.record.answer_id, turn.record.spoken = answer.id, answer.message
    return turn.record


# ---- which calls make which row


def divide(
    branches: Sequence[LedgerBranch], choice: RowChoice, result: AgentResult
) -> tuple[BranchSpan | None, list[BranchSpan]]:
    """Return the row of a rollout (None if no sample was delivered), and its other spans.

    Args:
        branches: of the rollout.
        choice: of the row.
        result: of the agent: a conversation without a score becomes the row only if no conversation
            has one.

    The division does not depend on the draw of "random": a drawn row trains only its own calls, so
    the mean over all draws counts each sample once.
    """
    unfollowed = unfollowed_calls(branches)
    trained = [branch for branch in branches if branch.caller.train]
    scored = [branch for branch in trained if _has_score(branch.caller, result)]
    rows = scored if any(branch.delivered_calls for branch in scored) else trained
    main = row_of(rows, choice.branch, unfollowed)
    spans = [] if main is None else [_span(main, 0, main.delivered_calls, unfollowed)]
    spans += _others(branches, main, unfollowed)
    auxiliary = _looking_auxiliary(branches, main)
    spans = [span._replace(looks_auxiliary=span.branch in auxiliary) for span in spans]
    if main is None:
        return None, spans
    if choice.branch != "random":
        return spans[0], spans[1:]
    drawn = [
        span
        for span in spans
        if span.branch in rows
        and not (
            choice.auxiliary == "leave_out"
            and is_auxiliary(span.looks_auxiliary, _name_of(span.branch.caller, result))
        )
    ]
    chances = chances_of(drawn, by_tokens=choice.by_tokens)
    (row,) = random.Random(choice.seed).choices(drawn, chances)
    return row, [span for span in spans if span is not row]


def _name_of(caller: Caller, result: AgentResult) -> str | None:
    return conversation_name(caller.name, caller.session, result.names)


def _has_score(caller: Caller, result: AgentResult) -> bool:
    key = reward_key(_name_of(caller, result), caller.session, result.rewards)
    return key is None or result.rewards[key] is not None


def _looking_auxiliary(
    branches: Sequence[LedgerBranch], main: LedgerBranch | None
) -> set[LedgerBranch]:
    """Return the branches that have their own root and no tools, if other branches have tools."""
    without = {frame: not json.loads(frame)[0] for frame in {branch.frame for branch in branches}}
    if all(without[branch.frame] for branch in branches if branch.calls):
        return set()
    # Branches share their common entries, so branches of one root begin with the same entry.
    root = None if main is None else main.entries[0]
    return {b for b in branches if without[b.frame] and b.entries[0] is not root}


def chances_of(spans: Sequence[BranchSpan], *, by_tokens: bool) -> list[int]:
    """Return how often each span is drawn as the row; 0 if it was not received or not followed.

    A loss that takes the mean over the tokens of each row (`grpo`, `sapo`) has to draw a row in
    proportion to its n_i of n tokens: the expected loss is then the sum of n_i / n times the row's
    mean, which is the mean over all n tokens. A loss that adds up tokens has to draw each of the k
    rows equally often: the expected loss is 1 / k of the sum over all tokens.
    """
    is_drawn = [span.delivered and span.followed for span in spans]
    if not any(is_drawn):
        is_drawn[0] = True
    return [
        (span.sampled_tokens if by_tokens else 1) if drawn else 0
        for span, drawn in zip(spans, is_drawn, strict=True)
    ]


def unfollowed_calls(branches: Sequence[LedgerBranch]) -> set[AgentCall]:
    """Return the calls whose answers the agent did not follow, although it followed a sibling.

    An agent that takes the best of n samples leaves n - 1 such calls at each turn.
    """
    points: dict[int, dict[AgentCall, bool]] = {}
    for branch in branches:
        calls = iter(branch.calls)
        for place, entry in enumerate(branch.entries):
            if entry.ours:
                # Branches share their common entries, so the entry before an answer identifies the
                # point at which it was sampled.
                samples = points.setdefault(id(branch.entries[place - 1]), {})
                call = next(calls)
                samples[call] = samples.get(call, False) or place + 1 < len(branch.entries)
    return {
        call
        for samples in points.values()
        for call, followed in samples.items()
        if not followed and any(samples.values())
    }


def row_of(
    branches: Sequence[LedgerBranch],
    which: BranchChoice | None,
    unfollowed: Collection[AgentCall] = (),
) -> LedgerBranch | None:
    """Return the branch that becomes the row, up to its last delivered sample.

    Args:
        branches: of the rollout.
        which: "last" is the branch with the last delivered sample; any other value, the one with
            the most delivered tokens.
        unfollowed: a branch that ends with one of these calls becomes the row only if no other can.
    """
    heard = [branch for branch in branches if branch.delivered_calls]
    heard = [branch for branch in heard if _last_heard(branch) not in unfollowed] or heard
    if not heard:
        return None
    if which == "last":
        return max(heard, key=_last_delivery)
    return max(heard, key=lambda branch: (_heard_tokens(branch), _last_delivery(branch)))


def _last_heard(branch: LedgerBranch) -> AgentCall:
    return branch.calls[branch.delivered_calls - 1]


def _last_delivery(branch: LedgerBranch) -> int:
    return _last_heard(branch).delivery


def _heard_tokens(branch: LedgerBranch) -> int:
    return sum(call.sampled_tokens for call in branch.calls[: branch.delivered_calls])


def _span(
    branch: LedgerBranch, begin: int, end: int, unfollowed: Collection[AgentCall]
) -> BranchSpan:
    return BranchSpan(branch, begin, end, branch.calls[end - 1] not in unfollowed)


def _others(
    branches: Sequence[LedgerBranch], row: LedgerBranch | None, unfollowed: Collection[AgentCall]
) -> list[BranchSpan]:
    """Return the spans that are not in the row, if they sampled tokens of their own."""
    owned = set(row.calls[: row.delivered_calls]) if row else set()
    found: list[BranchSpan] = []

    def longest_followed(branch: LedgerBranch) -> tuple[bool, int, int]:
        ends_unfollowed = bool(branch.calls) and _last_heard(branch) in unfollowed
        return ends_unfollowed, -branch.delivered_calls, -len(branch.calls)

    # A branch that another branch continues is a part of that branch.
    for branch in sorted(branches, key=longest_followed):
        for end in sorted({branch.delivered_calls, len(branch.calls)}):
            own = [k for k, call in enumerate(branch.calls[:end]) if call not in owned]
            owned.update(branch.calls[k] for k in own)
            if any(branch.calls[k].sampled_tokens for k in own):
                found.append(_span(branch, own[0], end, unfollowed))
    return found


# ---- their columns


def _columns(branch: LedgerBranch, begin: int, end: int) -> Columns:
    """Return the turns from `begin` to `end`, with everything before them as the prompt."""
    trajectory, turns = branch.conversation.trajectory, branch.conversation.turns
    start, stop = turns[begin].start, turns[end - 1].end
    logprobs: Any = np.nan_to_num(trajectory.logprobs[start:stop], nan=0.0)
    return Columns(
        prompt_ids=trajectory.ids[:start],
        completion_ids=trajectory.ids[start:stop],
        logprobs=logprobs,
        env_mask=trajectory.sampled_mask[start:stop],
    )


def _recorded(span: BranchSpan, cause: BranchCause | None) -> Branch:
    branch = span.branch
    turns = branch.conversation.turns
    return Branch(
        _columns(branch, span.begin, span.end),
        provenance=branch.conversation.trajectory.provenance[: turns[span.end - 1].end],
        cause=cause,
        delivered=span.delivered,
        followed=span.followed,
        name=branch.caller.name,
        session=branch.caller.session,
        trained=branch.caller.train,
        auxiliary=span.looks_auxiliary,
        turns=[_record(call) for call in span.calls],
        turns_before=[_record(call) for call in branch.calls[: span.begin]],
        images=images_before(branch.conversation.images, turns[span.end - 1].end),
        messages=branch.conversation.messages[: turns[span.end - 1].messages_before + 1],
        tools=_tools(branch),
    )
