"""Where the seams of a record are, and the tokens that would have merged at an inexact one.

A record has the verdicts in the order in which they were made, without offsets. The offsets follow
from its turns, because a conversation always writes a prompt, a sample, the end of its turn, a
reply, a sample. The tokens that meet in a merged seam are not recorded: the same calls are made
again, and their merge is used only if they reach the recorded verdict and the recorded ids.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from abut._native import Merge, Seam, Tokenizer, Trajectory
from abut.errors import AbutError
from abut.parts import PROVENANCE, Content, Part, Scaffold

_CLOSE, _SCAFFOLD = PROVENANCE.index("close"), PROVENANCE.index("scaffold")
_MOST_BEHIND = 2
"""After the last sample, the end of its turn and a reply may follow that are not in the row."""


def seam_offsets(record: Mapping[str, Any], length: int) -> list[int | None]:
    """Return, for each seam of a record, the token that follows it.

    None where that is not known or not in the row.

    Args:
        record: as `read_records` yields it.
        length: the number of its tokens, P + T.
    """
    seams, turns = record.get("seams") or (), record.get("turns") or ()
    provenance = record.get("provenance") or ()
    offsets = [0]
    for turn, following in zip(turns, [*turns[1:], None], strict=False):
        offsets.append(turn["start"])
        if following is not None:
            closed = _behind_close(provenance, turn["end"])
            offsets += [turn["end"]] if closed == turn["end"] else [turn["end"], closed]
    behind = len(seams) - len(offsets)
    if not provenance or not 0 <= behind <= _MOST_BEHIND:
        return [None] * len(seams)
    inside = [offset if offset < length else None for offset in offsets]
    return [*inside, *[None] * behind]


def merges(
    record: Mapping[str, Any],
    ids: NDArray[np.int64],
    offsets: Sequence[int | None],
    tokenizer: Tokenizer | None,
    control_ids: Collection[int],
) -> dict[int, Merge | None]:
    """Return the tokens that meet in inexact seams, by the number of the seam.

    None if no other tokens exist, as inside a character. A seam that cannot be made again is left
    out: the tokenizer is another one, or its tokens do not give the text back.

    Args:
        record: as `read_records` yields it.
        ids: `(P + T,)` int64, the record's tokens.
        offsets: of its seams, from `seam_offsets`.
        tokenizer: the record's; None: nothing is found.
        control_ids: the ids of its control tokens.
    """
    wanted = {
        number
        for number, (seam, offset) in enumerate(zip(record["seams"], offsets, strict=True))
        if not seam["exact"] and offset is not None
    }
    if not wanted or tokenizer is None:
        return {}
    found: dict[int, Merge | None] = {}
    turns = record.get("turns") or ()
    # No merge crosses a control token, so each turn is made again from the last one before it.
    controls = np.flatnonzero(np.isin(ids, [*control_ids]))
    for turn, following in zip(turns, [*turns[1:], None], strict=False):
        end = turn["end"] if following is None else following["start"]
        here = [k for k, offset in enumerate(offsets) if offset is not None]
        here = [k for k in here if turn["start"] <= (offsets[k] or 0) < end]
        if not wanted & {*here}:
            continue
        try:
            before = controls[: np.searchsorted(controls, turn["start"])]
            begin = int(before[-1]) if len(before) else 0
            made = list(_replay(record["provenance"], ids, begin, turn, end, tokenizer))
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
    tokenizer: Tokenizer,
) -> Iterator[Seam]:
    """Make the seams from the sample of a turn to the next again; stop where tokens differ."""
    start, behind = turn["start"], turn["end"]
    trajectory = Trajectory(tokenizer)

    def write(first: int, last: int, who: Literal["prompt", "env", "close"]) -> Seam:
        return trajectory.append_parts(
            _parts(provenance, ids, first, last, tokenizer), provenance=who
        )

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
    provenance: Sequence[int], ids: NDArray[np.int64], first: int, last: int, tokenizer: Tokenizer
) -> list[Part]:
    """Return the text of tokens, scaffold and content apart."""
    parts: list[Part] = []
    for is_scaffold, group in groupby(
        range(first, last), lambda k: provenance[k] in (_SCAFFOLD, _CLOSE)
    ):
        text = tokenizer.decode(ids[list(group)])
        parts.append(Scaffold(text) if is_scaffold else Content(text))
    return parts


def _behind_close(provenance: Sequence[int], offset: int) -> int:
    """Return the first token from `offset` on that does not close a turn."""
    while offset < len(provenance) and provenance[offset] == _CLOSE:
        offset += 1
    return offset
