"""Deciding the seam after a short and a long text."""

from collections.abc import Callable
from typing import Any, TypeAlias

from benchmarks.figures import Row, require_same
from benchmarks.texts import Corpus
from benchmarks.timing import Check, Sides, all_rounds, interleave
from benchmarks.workbench import Workbench

SEAM, ADDITIVE = "abut seam()", "abut is_additive()"
ENCODES = "tokenizers, three encodes"
RIGHT_BYTES = 100

Judged: TypeAlias = tuple[str, str, list[int], bool]
"""Both texts, and the results of seam() and is_additive(), compared with three encodes."""


def measure(workbench: Workbench) -> Row:
    """Decide seams with `seam` and `is_additive`, and with three encodes."""
    scale = workbench.scale
    row = Row(
        "seam",
        f"decide the seam between ordinary text and {RIGHT_BYTES} more bytes",
        equal="the tokens that `drop` and `ids` of seam() give, and the answer of is_additive(), "
        "with three encodes by `tokenizers`: the two texts, and both joined",
        notes=["Ordinary text is prose and code in ASCII, new in every round."],
    )
    corpus = Corpus(5)
    judged: dict[int, list[Judged]] = {}
    for size in scale.seam_bytes:
        rounds, judged[size] = [], []
        for _ in range(scale.seam_rounds):
            left = corpus.ordinary(size)
            rights = corpus.ordinary(RIGHT_BYTES * (scale.seam_calls + 1))
            verdicts = _verdicts(workbench, left, rights, judged[size])
            rounds.append(interleave(verdicts, scale.seam_calls))
        row.add(case(size), all_rounds(rounds))
    _alone(workbench, row, judged)
    _require(row, *scale.seam_bytes)
    return row


def case(size: int, *, alone: bool = False) -> str:
    """Return the name of the case of a size."""
    return f"after {size:,} bytes" + (", measured alone" if alone else "")


def _verdicts(
    workbench: Workbench, left: str, rights: str, judged: list[Judged]
) -> Callable[[int], tuple[Sides, Check]]:
    """One round decides the seam between `left` and the next bytes of `rights`."""
    tokenizer, oracle = workbench.tokenizer, workbench.oracle

    def prepare(number: int) -> tuple[Sides, Check]:
        begin = (number + 1) * RIGHT_BYTES
        right = rights[begin : begin + RIGHT_BYTES]

        def encodes() -> list[list[int]]:
            texts = (left, right, left + right)
            return [oracle.encode(text, add_special_tokens=False).ids for text in texts]

        def check(results: dict[str, Any]) -> None:
            a, b, joined = results[ENCODES]
            seam = results[SEAM]
            ours = [*a[: len(a) - seam.drop], *seam.ids.tolist()]
            require_same("tokens across a seam", "tokenizers", ours, joined)
            additive = results[ADDITIVE]
            require_same("is_additive()", "tokenizers", [additive], [a + b == joined])
            judged.append((left, right, seam.ids.tolist(), additive))

        return {
            SEAM: lambda: tokenizer.seam(left, right),
            ADDITIVE: lambda: tokenizer.is_additive(left, right),
            ENCODES: encodes,
        }, check

    return prepare


def _alone(workbench: Workbench, row: Row, judged: dict[int, list[Judged]]) -> None:
    """Decide the same seams again, alternating short and long, to show that length does not matter.

    Next to `tokenizers` this would not show, because a long encode evicts more from the caches.
    """
    tokenizer = workbench.tokenizer
    for side, judge in ((SEAM, tokenizer.seam), (ADDITIVE, tokenizer.is_additive)):

        def prepare(number: int, judge: Callable[[str, str], Any] = judge) -> tuple[Sides, Check]:
            pairs = {size: seams[number % len(seams)] for size, seams in judged.items()}

            def check(results: dict[str, Any]) -> None:
                for size, (_, _, ids, additive) in pairs.items():
                    found = results[case(size, alone=True)]
                    found, known = (
                        ([found], [additive]) if isinstance(found, bool) else (found.ids, ids)
                    )
                    require_same(case(size, alone=True), "its first result", found, known)

            def judging(left: str, right: str) -> Callable[[], Any]:
                return lambda: judge(left, right)

            return {
                case(size, alone=True): judging(*pair[:2]) for size, pair in pairs.items()
            }, check

        rounds = 10 * len(next(iter(judged.values())))
        for name, values in interleave(prepare, rounds).items():
            row.add(name, {side: values})


def _require(row: Row, short: int, long: int) -> None:
    for side in (SEAM, ADDITIVE):
        row.need_faster(ENCODES, case(long), 1_000, side=side)
        over, under = case(long, alone=True), case(short, alone=True)
        row.need_ratio(f"{side}, {over} ÷ {under}", (side, over), (side, under), "at most", 1.5)
