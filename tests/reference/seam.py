"""Where one piece meets the next: what became of the tokens on the left."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from abut.errors import TokenizerError
from abut.parts import Part
from tests.reference.edge import Edge
from tests.reference.encode import Encoder, Token

SeamKind: TypeAlias = Literal["barrier", "window", "merged", "opaque"]


@dataclass(frozen=True)
class Merge:
    """The tokens that meet in a merged seam, from the first that differs to the last."""

    left_ids: list[int]
    right_ids: list[int]
    merged_ids: list[int]
    left_text: str
    right_text: str


@dataclass(frozen=True)
class Seam:
    """The left tokens without the last `drop`, then `ids`, are the tokens of both."""

    kind: SeamKind
    exact: bool
    drop: int
    ids: list[int]
    canonical_ids: list[int] | None = None
    merge: Merge | None = None


def between_texts(
    encoder: Encoder,
    before: Sequence[Token],
    after: Sequence[Token],
    barrier: bool,
    right: Sequence[Part],
) -> Seam:
    """The seam where `before` became `after` because `right` arrived."""
    left_ids, joined_ids = [token.id for token in before], [token.id for token in after]
    kept = common_prefix(left_ids, joined_ids)
    drop = len(left_ids) - kept
    if not drop:
        return Seam("barrier" if barrier else "opaque", True, 0, joined_ids[kept:])
    try:
        right_ids = [token.id for token in encoder.tokens(right, Edge.CONTINUE)]
    except TokenizerError:  # it cannot be written without what stands before it
        merge = None
    else:
        merge = merge_of(encoder, left_ids, right_ids, joined_ids)
    return Seam("merged", False, drop, joined_ids[kept:], merge=merge)


def merge_of(encoder: Encoder, left: list[int], right: list[int], joined: list[int]) -> Merge:
    """What differs between both sides alone and the two joined."""
    kept = common_prefix(left + right, joined)
    left, right = left[kept:], right[max(0, kept - len(left)) :]
    merged = joined[kept:]
    same = common_prefix(right[::-1], merged[::-1])
    right, merged = right[: len(right) - same], merged[: len(merged) - same]
    return Merge(left, right, merged, encoder.file.decode(left), encoder.file.decode(right))


def after_frozen(
    encoder: Encoder, left: Sequence[Part], right: Sequence[Part], written: list[int]
) -> Seam:
    """What the canonical tokens on both sides of a frozen edge are; they are never applied.

    `left` is the text of frozen ids, so it has its prefix in it, and nothing here writes another
    one. `canonical_ids` begin at the first token that differs from those of the two texts alone.
    Without text on a side, as inside a character, there is nothing to compare, and text that only
    sampled bytes spell has no canonical tokens.
    """
    without_canonical = Seam("merged", exact=False, drop=0, ids=written)
    if not left or not right:
        return without_canonical

    def canonical(parts: Sequence[Part]) -> list[int]:
        return [token.id for token in encoder.tokens(parts, Edge.CONTINUE)]

    try:
        before, after, joined = canonical(left), canonical(right), canonical([*left, *right])
    except TokenizerError:
        return without_canonical
    if joined == before + after:
        return Seam("opaque", exact=True, drop=0, ids=written)
    canonical_ids = joined[common_prefix(before + after, joined) :]
    merge = merge_of(encoder, before, after, joined)
    return Seam("merged", False, 0, written, canonical_ids, merge)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids agree from the start."""
    return len(os.path.commonprefix([list(a), list(b)]))
