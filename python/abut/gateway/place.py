"""Where in a rollout a request goes on.

Invariant: a place is found by what was said alone; ids only choose between branches in which the
same was said.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from abut.gateway.branch import Branch
from abut.gateway.matching import History, Match, forms_read, forms_returned, match
from abut.rollout.rollout import BranchCause


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


def why_root(
    branches: Sequence[Branch], frame: str, history: History, rewrites: Collection[str]
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
    forms = {form for entry in ours if not entry.is_empty for form in forms_returned(entry)}
    behind = [m for m in history.messages[common:] if m["role"] == "assistant"]
    back = any(not forms.isdisjoint(forms_read(message)) for message in behind)
    return "rewritten" if back else "new"
