"""The images that an agent left out of its history.

Invariant: nothing that a ledger has written is undone, so an image that is gone from the history is
gone because the conversation forked: the branch before the fork has it, and the one behind has not.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from abut.gateway.ledger.branch import LedgerBranch
from abut.images import ImageSpan
from abut.rollout.image_spans import images_before
from abut.rollout.rollout import DroppedImages

# The others do not leave out what was said: they are asked by another agent, or ask once more.
_CAUSES = ("rewritten", "compaction", "template")


def dropped_images(branches: Sequence[LedgerBranch]) -> list[DroppedImages]:
    """Return the images that the branches of a rollout have left out, one entry for each fork.

    Args:
        branches: of the rollout, in the order in which they began; they no longer change.
    """
    found = (_dropped(branch, branches[:place]) for place, branch in enumerate(branches))
    return [dropped for dropped in found if dropped is not None]


def _dropped(branch: LedgerBranch, earlier: Sequence[LedgerBranch]) -> DroppedImages | None:
    """Return the images that a branch has left out of the one that it forked from."""
    if branch.cause not in _CAUSES or not any(other.conversation.images for other in earlier):
        return None
    shared = max((_shared_calls(branch, other) for other in earlier), default=0)
    if shared == len(branch.calls):  # its own turn was never sampled
        return None
    end, number = branch.conversation.turns[shared].start, branch.calls[shared].number
    forked: tuple[tuple[int, int], list[ImageSpan]] | None = None
    for other in earlier:
        # The other branch as it was then: it may have gone on since.
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
