"""Encoding: one text after another, each seen for the first time, then once more."""

from typing import Any

from abut.bench.figures import Row, require_same
from abut.bench.texts import Corpus
from abut.bench.timing import Check, Sides, interleave
from abut.bench.workbench import Workbench

PEER = "tokenizers encode"
FIRST, AGAIN = "a text seen for the first time", "the same text again"


def measure(workbench: Workbench) -> Row:
    """Encode mixed text."""
    size = workbench.scale.encode_bytes
    row = Row("encode", f"encode {size:,} bytes of mixed text (code, prose, CJK, JSON)")
    ours, oracle, corpus = workbench.tokenizer, workbench.oracle, Corpus(1)

    def prepare(number: int) -> tuple[Sides, Check]:
        text = corpus.mixed(size if number >= 0 else size // 10)

        def abut() -> Any:
            return ours.encode(text)

        def tokenizers() -> Any:
            return oracle.encode(text, add_special_tokens=False).ids

        def check(results: dict[str, Any]) -> None:
            for peer in (PEER, "again " + PEER, "encode_batch_fast"):
                require_same("the tokens of mixed text", peer, results["abut"], results[peer])
            require_same("the tokens, encoded again", PEER, results["again abut"], results[PEER])

        return {
            "abut": abut,
            PEER: tokenizers,
            "encode_batch_fast": lambda: (
                oracle.encode_batch_fast([text], add_special_tokens=False)[0].ids
            ),
            "again abut": abut,
            "again " + PEER: tokenizers,
        }, check

    taken = interleave(prepare, workbench.scale.encode_rounds)
    fast = "tokenizers encode_batch_fast"
    row.add(
        FIRST,
        {"abut": taken["abut"], PEER: taken[PEER], fast: taken["encode_batch_fast"]},
    )
    row.add(AGAIN, {"abut": taken["again abut"], PEER: taken["again " + PEER]})
    row.need_faster(PEER, FIRST, 20)
    row.equal = "all token ids, in every round"
    row.notes = [
        "abut returns an int64 array; `tokenizers` an `Encoding`, of which `.ids` is taken.",
        "Every round has another text, which neither side has seen. Code and prose are those of "
        "Python's standard library; Chinese, Japanese, Korean and JSON are written at random, "
        "every tenth CJK word of random characters.",
    ]
    return row
