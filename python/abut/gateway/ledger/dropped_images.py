"""The images that an agent left out of its history.

Invariant: a ledger never undoes what it has written. If an agent drops an image from its history, a
new branch begins: the previous branch has the image, and the new one does not.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from abut.gateway.ledger.branch import LedgerBranch
from abut.images import ImageSpan
from abut.messages import Message
from abut.rollout.image_spans import images_before
from abut.rollout.rollout import DroppedImages

# Other causes do not leave out messages: another agent sent the request, or it is a repetition.
_CAUSES = ("rewritten", "compaction", "template", "new")
_SYSTEM = ("system", "developer")


def dropped_images(branches: Sequence[LedgerBranch]) -> list[DroppedImages]:
    """Return the images that the branches of a rollout have left out, one entry per branch.

    Args:
        branches: of the rollout, in the order in which they began, which no longer change.
    """
    found = (_dropped(branch, branches[:place], branches) for place, branch in enumerate(branches))
    return [dropped for dropped in found if dropped is not None]


def _dropped(
    branch: LedgerBranch, earlier: Sequence[LedgerBranch], branches: Sequence[LedgerBranch]
) -> DroppedImages | None:
    """Return the images that a branch has left out of the one that it forked from or replaced."""
    if branch.cause not in _CAUSES or not any(other.conversation.images for other in earlier):
        return None
    shared = max((_shared_calls(branch, other) for other in earlier), default=0)
    if shared == len(branch.calls):  # its own turn was never sampled
        return None
    end, number = branch.conversation.turns[shared].start, branch.calls[shared].number
    if branch.cause == "new":
        earlier = _replaced(branch, number, earlier, branches)
    forked: tuple[tuple[int, int], list[ImageSpan]] | None = None
    for other in earlier:
        # The other branch in its state at that time, because it may have continued since.
        turns = sum(call.number < number for call in other.calls)
        if not turns or other.caller != branch.caller:
            continue
        before = other.conversation.turns[turns - 1].end
        rank = (_common_tokens(branch, end, other, before), other.calls[turns - 1].number)
        if forked is None or rank > forked[0]:
            forked = rank, images_before(other.conversation.images, before)
    if forked is None:
        return None
    (common, _), images = forked
    kept = Counter(span.image for span in images_before(branch.conversation.images, end))
    dropped = []
    for span in images:
        kept[span.image] -= 1
        if kept[span.image] < 0:
            dropped.append(span)
    if not dropped:
        return None
    return DroppedImages(
        tuple(span.image for span in dropped),
        branch.cause,
        image_tokens=sum(span.features for span in dropped),
        reread_tokens=end - common,
    )


def _replaced(
    branch: LedgerBranch,
    number: int,
    earlier: Sequence[LedgerBranch],
    branches: Sequence[LedgerBranch],
) -> Sequence[LedgerBranch]:
    """Return the last conversation that a new one may have replaced, if there is one.

    An agent that shows only its newest screenshot begins a conversation in each step, with the same
    system prompt and tools, and never returns to the previous one. A helper that it calls in
    between does not look like this: the helper has its own prompt, or the agent continues
    afterwards.
    """
    going_on = {
        id(other.entries[0])
        for other in branches
        if other.calls and other.calls[-1].number > number
    }
    left = [
        (other.calls[-1].number, other)
        for other in earlier
        if other.calls
        and other.frame == branch.frame
        and other.caller == branch.caller
        and id(other.entries[0]) not in going_on
        and _system_messages(other) == _system_messages(branch)
    ]
    return [max(left, key=lambda one: one[0])[1]] if left else []


def _system_messages(branch: LedgerBranch) -> list[Message]:
    messages = (entry.message for entry in branch.entries)
    return list(takewhile(lambda message: message["role"] in _SYSTEM, messages))


def _shared_calls(branch: LedgerBranch, other: LedgerBranch) -> int:
    """Return how many calls two branches begin with together."""
    same = [mine is theirs for mine, theirs in zip(branch.calls, other.calls, strict=False)]
    return same.index(False) if False in same else len(same)


def _common_tokens(branch: LedgerBranch, end: int, other: LedgerBranch, before: int) -> int:
    """Return how many tokens two branches begin with together, up to a token of each."""
    count = min(end, before)
    mine, theirs = branch.conversation.trajectory.ids, other.conversation.trajectory.ids
    differ = np.flatnonzero(mine[:count] != theirs[:count])
    return int(differ[0]) if len(differ) else count
