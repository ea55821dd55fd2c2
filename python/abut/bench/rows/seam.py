"""The verdict on a seam behind a short and a long text."""

from collections.abc import Callable
from typing import Any

from abut.bench.figures import Row, require_same
from abut.bench.stage import Stage
from abut.bench.texts import Corpus
from abut.bench.timing import Check, Sides, interleave, together

ENCODES = "tokenizers, both and their join"
RIGHT_BYTES = 100


def measure(stage: Stage) -> Row:
    """Judge seams by `seam` and `is_additive`, and by three encodes."""
    scale = stage.scale
    row = Row(
        "seam",
        f"seam() and is_additive() between ordinary text and {RIGHT_BYTES} bytes more",
        equal="`drop` and `ids` of every seam give the tokens of the join; is_additive() is what "
        "three encodes say",
        notes=["Ordinary text: prose and code in ASCII, another one in every round."],
    )
    corpus = Corpus(5)
    for size in scale.seam_bytes:
        rounds = []
        for _ in range(scale.seam_rounds):
            left, rights = (
                corpus.ordinary(size),
                corpus.ordinary(RIGHT_BYTES * (scale.seam_calls + 1)),
            )
            rounds.append(interleave(_verdicts(stage, left, rights), scale.seam_calls))
        row.add(case(size), together(rounds))
    _require(row, *map(case, scale.seam_bytes))
    return row


def case(size: int) -> str:
    """The name of a size."""
    return f"behind {size:,} bytes"


def _verdicts(stage: Stage, left: str, rights: str) -> Callable[[int], tuple[Sides, Check]]:
    """One round judges the seam between `left` and the next bytes of `rights`."""
    tokenizer, oracle = stage.tokenizer, stage.oracle

    def prepare(number: int) -> tuple[Sides, Check]:
        begin = (number + 1) * RIGHT_BYTES
        right = rights[begin : begin + RIGHT_BYTES]

        def encodes() -> list[list[int]]:
            texts = (left, right, left + right)
            return [oracle.encode(text, add_special_tokens=False).ids for text in texts]

        def check(results: dict[str, Any]) -> None:
            a, b, joined = results[ENCODES]
            seam = results["abut seam()"]
            told = [*a[: len(a) - seam.drop], *seam.ids.tolist()]
            require_same("the tokens across a seam", "tokenizers", told, joined)
            additive = [results["abut is_additive()"]]
            require_same("is_additive()", "tokenizers", additive, [a + b == joined])

        return {
            "abut seam()": lambda: tokenizer.seam(left, right),
            "abut is_additive()": lambda: tokenizer.is_additive(left, right),
            ENCODES: encodes,
        }, check

    return prepare


def _require(row: Row, short: str, long: str) -> None:
    for side in ("abut seam()", "abut is_additive()"):
        row.need_faster(ENCODES, long, 1_000, side=side)
        row.need_ratio(f"{side}, {long} ÷ {short}", (side, long), (side, short), "at most", 1.5)
