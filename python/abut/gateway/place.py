"""Where in a rollout a request goes on.

Invariant: a place is found by what was said alone; ids only choose between branches in which the
same was said.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from abut.gateway.branch import Branch
from abut.gateway.matching import History, Match, match


class Place(NamedTuple):
    """Where a request goes on.

    `again`: it asks once more what the branch was asked behind `found.turns` answers. `stale`: the
    token ids that it names for the last of them are others.
    """

    branch: Branch
    found: Match
    again: bool
    stale: bool


def find_place(
    branches: Sequence[Branch], frame: str, history: History, rewrites: Collection[str]
) -> Place | None:
    """The branch that has most of the history; None where none has an answer of it.

    Args:
        branches: those of the rollout.
        frame: what the request is written with, see `ChatRequest.frame`.
        history: its messages.
        rewrites: the rules by which an answer may have come back changed.
    """
    best: tuple[tuple[int, ...], Place] | None = None
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
            best = rank, Place(branch, found, again, agreement[0] < 0)
    return None if best is None else best[1]
