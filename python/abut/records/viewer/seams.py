"""Where the seams of a record are, and what an inexact one would have been.

A record has the verdicts in the order in which they were made, not their places: those follow from
its turns, since a conversation always writes a prompt, a sample, what closes it, a reply, a sample.
The tokens that meet in a merged seam are made anew, by the same calls, and believed only where they
come to the same verdict and the same ids.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from abut._native import Merge, Seam, Trajectory
from abut.errors import AbutError
from abut.parts import PROVENANCE, Content, Part, Scaffold
from abut.records.viewer.pieces import Pieces

_CLOSE, _SCAFFOLD = PROVENANCE.index("close"), PROVENANCE.index("scaffold")
_MOST_BEHIND = 2
"""Behind the last sample a reply may have been written that is not in the row: a close, and it."""


def placed_seams(record: Mapping[str, Any], length: int) -> list[int | None]:
    """For each seam of a record the token that it is before; None: not known, or not in the row.

    Args:
        record: as `read_records` yields it.
        length: of its tokens, P + T.
    """
    seams, turns = record.get("seams") or (), record.get("turns") or ()
    provenance = record.get("provenance") or ()
    places = [0]
    for turn, following in zip(turns, [*turns[1:], None], strict=False):
        places.append(turn["start"])
        if following is not None:
            closed = _behind_close(provenance, turn["end"])
            places += [turn["end"]] if closed == turn["end"] else [turn["end"], closed]
    behind = len(seams) - len(places)
    if not provenance or not 0 <= behind <= _MOST_BEHIND:
        return [None] * len(seams)
    inside = [place if place < length else None for place in places]
    return [*inside, *[None] * behind]


def merges(
    record: Mapping[str, Any],
    ids: NDArray[np.int64],
    places: Sequence[int | None],
    pieces: Pieces,
) -> dict[int, Merge | None]:
    """The tokens that meet in inexact seams, by the number of the seam.

    None: no other tokens exist, as inside a character. Seams that cannot be made again are not
    there: another tokenizer, or text that its tokens do not give back.

    Args:
        record: as `read_records` yields it.
        ids: `(P + T,)` int64, its tokens.
        places: those of its seams, from `placed_seams`.
        pieces: of its tokenizer.
    """
    wanted = {
        number
        for number, (seam, place) in enumerate(zip(record["seams"], places, strict=True))
        if not seam["exact"] and place is not None
    }
    if not wanted or pieces.tokenizer is None:
        return {}
    found: dict[int, Merge | None] = {}
    turns = record.get("turns") or ()
    # A control token parts what is before it from what is behind: nothing further back matters.
    controls = np.flatnonzero(np.isin(ids, [*pieces.control_ids]))
    for turn, following in zip(turns, [*turns[1:], None], strict=False):
        end = turn["end"] if following is None else following["start"]
        here = [k for k, place in enumerate(places) if place is not None]
        here = [k for k in here if turn["start"] <= (places[k] or 0) < end]
        if not wanted & {*here}:
            continue
        try:
            before = controls[: np.searchsorted(controls, turn["start"])]
            begin = int(before[-1]) if len(before) else 0
            made = list(_replay(record["provenance"], ids, begin, turn, end, pieces))
        except AbutError:
            continue
        for number, seam in zip(here, made, strict=False):
            said = record["seams"][number]
            if (seam.kind, seam.exact) != (said["kind"], said["exact"]):
                break
            if number in wanted:
                found[number] = seam.merge
    return found


def _replay(
    provenance: Sequence[int],
    ids: NDArray[np.int64],
    begin: int,
    turn: Mapping[str, Any],
    end: int,
    pieces: Pieces,
) -> Iterator[Seam]:
    """The seams from the sample of a turn to the next, made again; ends where tokens differ."""
    tokenizer = pieces.tokenizer
    assert tokenizer is not None
    start, behind = turn["start"], turn["end"]
    trajectory = Trajectory(tokenizer)

    def write(first: int, last: int, who: Literal["prompt", "env", "close"]) -> Seam:
        return trajectory.append_parts(_parts(provenance, ids, first, last, pieces), provenance=who)

    def agrees(last: int) -> bool:
        return bool(np.array_equal(trajectory.ids, ids[begin:last]))

    write(begin, start, "prompt")
    if not agrees(start):
        return
    trajectory.request()
    yield trajectory.append_sampled(ids[start:behind], np.zeros(behind - start, np.float32))
    closed = min(_behind_close(provenance, behind), end)
    if closed > behind:
        yield write(behind, closed, "close")
    if end > closed:
        seam = write(closed, end, "env")
        if agrees(end):
            yield seam


def _parts(
    provenance: Sequence[int], ids: NDArray[np.int64], first: int, last: int, pieces: Pieces
) -> list[Part]:
    """The text of tokens, scaffold and content apart."""
    assert pieces.tokenizer is not None
    parts: list[Part] = []
    for is_scaffold, group in groupby(
        range(first, last), lambda k: provenance[k] in (_SCAFFOLD, _CLOSE)
    ):
        text = pieces.tokenizer.decode(ids[list(group)])
        parts.append(Scaffold(text) if is_scaffold else Content(text))
    return parts


def _behind_close(provenance: Sequence[int], place: int) -> int:
    """The first token from `place` on that does not close a turn."""
    while place < len(provenance) and provenance[place] == _CLOSE:
        place += 1
    return place
