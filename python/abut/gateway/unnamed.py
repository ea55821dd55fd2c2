"""Whose request it is that names no rollout: one whose history it goes on with, or repeats.

Invariant: a rollout is found by what was said in it alone, and two that are equal are told apart
by which of them waits for a request.
"""

from collections.abc import Collection, Sequence

from abut.gateway.histories import Histories, Spot
from abut.gateway.matching import History
from abut.gateway.place import find_place
from abut.gateway.request import ChatRequest
from abut.gateway.session import Session


def who_repeats(histories: Histories, body: bytes, retried: bool) -> Sequence[Session]:
    """Return the rollouts that a repeated request fits best; none where it is a new one."""
    fits = [(one.fits_again(body, retried), one) for one in histories.with_body(body)]
    best = max((fit for fit, _ in fits), default=0)
    return [session for fit, session in fits if fit == best] if best else []


def who_goes_on(
    histories: Histories, request: ChatRequest, rewrites: Collection[str], most: int = 1
) -> Sequence[Spot]:
    """Return where a request may go on: of the longest histories, those that wait for a request.

    Where none waits, others have gone on from there, and the request begins a branch.

    Args:
        histories: of the rollouts that it may be of.
        request: names none.
        rewrites: the rules by which an answer may have come back changed.
        most: so many are enough.
    """
    history = History(request.messages)
    fallback: tuple[int, Spot] | None = None
    for node in histories.levels(request.frame, history):
        for spots in (node.free, node.taken):
            found: list[Spot] = []
            for spot in spots:
                place = find_place([spot.branch], request.frame, history, rewrites)
                turns = 0 if place is None else place.found.turns
                if turns >= spot.turns:
                    found.append(spot)
                    if len(found) == most:
                        return found
                elif turns and (fallback is None or turns > fallback[0]):
                    fallback = turns, spot
            if found:
                return found
    return [] if fallback is None else [fallback[1]]
