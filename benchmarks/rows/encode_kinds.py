"""Encoding texts of one kind each: abut must not be much slower than gigatoken in any kind."""

from itertools import product
from typing import Any

from benchmarks.encoders import ABUT, GIGATOKEN, TOKENIZERS, Encode, new_tokenizer, peers_of
from benchmarks.figures import ResultsDiffer, Row, require_same
from benchmarks.kinds import KINDS, text_of
from benchmarks.timing import Check, Sides, interleave
from benchmarks.workbench import Workbench

FIRST, AGAIN = "seen for the first time", "again"
_AT_LEAST = 1 / 1.2
"""abut may take at most 1.2 times as long in every kind."""


def measure(workbench: Workbench) -> Row:
    """Encode text of each kind twice with abut and gigatoken."""
    scale = workbench.scale
    row = Row(
        "encode_kinds",
        f"encode {scale.kind_bytes:,} bytes of one kind, {len(KINDS)} kinds",
        equal="all token ids, in every round, and in the warm-up also with those of `tokenizers`",
        notes=[
            "Every round encodes new text. Each kind has its own tokenizer objects, so that their "
            "caches have no words of another kind."
        ],
    )
    of_file = workbench.peer("tokenizers").Tokenizer.from_file
    oracle = of_file(str(workbench.tokenizer_json))
    for kind in KINDS:
        for case, taken in _timed(workbench, row, kind, oracle).items():
            row.add(f"{kind}, {case}", taken)
    for case in (FIRST, AGAIN):
        _require_of_slowest(row, case)
    return row


def _require_of_slowest(row: Row, case: str) -> None:
    """Require that abut is not much slower than gigatoken even in its slowest kind."""
    ratios = {}
    for kind in KINDS:
        named = f"{kind}, {case}"
        ours, theirs = row.median(ABUT, named), row.median(GIGATOKEN, named)
        if ours is not None and theirs is not None:
            ratios[named] = theirs / ours
    if ratios:
        slowest = min(ratios, key=lambda named: ratios[named])
        what = f"{GIGATOKEN} ÷ {ABUT}, slowest kind ({slowest})"
        row.need_faster(GIGATOKEN, slowest, _AT_LEAST, what=what)


def _timed(
    workbench: Workbench, row: Row, kind: str, oracle: Any
) -> dict[str, dict[str, list[float]]]:
    """Return the times of a kind by case and side."""
    file = workbench.tokenizer_json
    tokenizer = new_tokenizer(file)
    peers, missing = peers_of(workbench, file, tokenizer, [GIGATOKEN])
    row.missing |= missing
    sides: dict[str, Encode] = {ABUT: tokenizer.encode, **peers}

    def prepare(number: int) -> tuple[Sides, Check]:
        text = text_of(kind, number, workbench.scale.kind_bytes)

        def encoding(encode: Encode) -> Any:
            return lambda: encode(text)

        def check(results: dict[str, Any]) -> None:
            ours, what = results[f"{ABUT} {FIRST}"], f"tokens of {kind}"
            if number < 0:
                theirs = oracle.encode(text, add_special_tokens=False).ids
                require_same(what, TOKENIZERS, ours, theirs)
            for side, case in product(sides, (FIRST, AGAIN)):
                try:
                    require_same(what, side, ours, results[f"{side} {case}"])
                except ResultsDiffer as differ:
                    if side == ABUT:
                        raise
                    row.missing[f"{side}, {kind}"] = str(differ).partition("\n")[0]

        names = list(sides) if number % 2 else [*reversed(sides)]
        timed = {
            f"{side} {case}": encoding(sides[side]) for side in names for case in (FIRST, AGAIN)
        }
        return timed, check

    taken = interleave(prepare, workbench.scale.kind_rounds)
    equal = [side for side in sides if f"{side}, {kind}" not in row.missing]
    return {case: {side: taken[f"{side} {case}"] for side in equal} for case in (FIRST, AGAIN)}
