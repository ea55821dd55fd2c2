"""Encoding: one text after another, each seen for the first time, then once more."""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.encoders import (
    ABUT,
    FAST,
    GIGATOKEN,
    SHAPES,
    TIKTOKEN,
    TOKENIZERS,
    Encode,
    new_tokenizer,
    peers_of,
)
from benchmarks.figures import ResultsDiffer, Row, require_same
from benchmarks.peers import PeerMissing
from benchmarks.texts import Corpus
from benchmarks.timing import Check, Sides, interleave
from benchmarks.workbench import Workbench

MIXED, CODE = "mixed text", "code"
_CASES = {
    MIXED: ("text seen for the first time", "the same text again"),
    CODE: ("code seen for the first time", "the same code again"),
}


def measure(workbench: Workbench) -> Row:
    """Encode mixed text and code, with the tokenizer of the other rows and with each shape."""
    scale = workbench.scale
    row = Row(
        "encode",
        f"encode {scale.encode_bytes:,} bytes of mixed text (code, prose, CJK, JSON)",
        equal="all token ids, in every round",
        notes=[
            "abut returns an int64 array, gigatoken a uint32 array and tiktoken a list. "
            "`tokenizers` returns an `Encoding`; reading its `.ids` is timed too.",
            "Every round encodes new text that no side has seen. Code and prose come from Python's "
            "standard library. Chinese, Japanese, Korean and JSON are generated at random; every "
            "tenth CJK word consists of random characters. The cases with code alone encode "
            f"{scale.encode_code_bytes:,} bytes of the standard library.",
            "tiktoken is built from the ranks and the pattern in tokenizer.json, without a "
            "normalizer and without added tokens.",
            "“Llama 3's pattern” and similar cases are used if the model's own file is missing: "
            "they have the vocabulary of the other rows, no normalizer, and the pattern that "
            "splits this model's words.",
        ],
    )
    corpus = Corpus(1)
    shares = [0.1, *[1.0] * scale.encode_rounds]  # a short text for the warm-up
    texts = {
        MIXED: [corpus.mixed(int(share * scale.encode_bytes)) for share in shares],
        CODE: [corpus.code(int(share * scale.encode_code_bytes)) for share in shares],
    }
    with TemporaryDirectory() as folder:
        measured = {"": workbench.tokenizer_json, **_shapes(workbench, row, Path(folder))}
        for suffix, file in measured.items():
            _by_one_tokenizer(workbench, row, texts, suffix, file)
    row.need_faster(TOKENIZERS, _CASES[MIXED][0], 20)
    cases = [case + suffix for suffix in measured for cases in _CASES.values() for case in cases]
    for case in cases:
        row.need_faster(GIGATOKEN, case, 1)
    for peer in (GIGATOKEN, TIKTOKEN):
        _tell(row, peer, cases)
    return row


def _shapes(workbench: Workbench, row: Row, folder: Path) -> dict[str, Path]:
    """Return the file of each shape, found or created in `folder`, by the suffix of its cases."""
    files = {}
    for shape in SHAPES:
        try:
            files[f", {shape.name}"] = shape.file()
            continue
        except PeerMissing as reason:
            row.missing[shape.name] = str(reason)
        try:
            made = shape.on_vocabulary_of(workbench.tokenizer_json, folder)
            files[f", {shape.name}'s pattern"] = made
        except PeerMissing as reason:
            row.missing[f"{shape.name}'s pattern"] = str(reason)
    return files


def _tell(row: Row, peer: str, cases: Sequence[str]) -> None:
    """Note the cases in which abut is faster than a peer, and those in which it is slower."""
    won: list[str] = []
    lost: list[str] = []
    for case in cases:
        ours, theirs = row.median(ABUT, case), row.median(peer, case)
        if ours is not None and theirs is not None:
            (won if ours <= theirs else lost).append(case)
    if won or lost:
        row.notes.append(
            f"abut is faster than {peer} in {len(won)} of {len(won) + len(lost)} cases"
            + (f"; it is slower in: {'; '.join(lost)}." if lost else ".")
        )


def _by_one_tokenizer(
    workbench: Workbench,
    row: Row,
    texts: Mapping[str, Sequence[str]],
    suffix: str,
    file: Path,
) -> None:
    """Add the cases of one tokenizer.json; their names end in `suffix`."""
    tokenizer = new_tokenizer(file)
    oracle = workbench.peer("tokenizers").Tokenizer.from_file(str(file))

    def by_tokenizers(text: str) -> Any:
        return oracle.encode(text, add_special_tokens=False).ids

    def by_batch(text: str) -> Any:
        return oracle.encode_batch_fast([text], add_special_tokens=False)[0].ids

    peers, missing = peers_of(workbench, file, tokenizer)
    sides: dict[str, Encode] = {ABUT: tokenizer.encode, **peers, TOKENIZERS: by_tokenizers}
    if not suffix:  # it is the slowest: one tokenizer is enough
        sides[FAST] = by_batch
    for kind, (first, again) in _CASES.items():
        taken = _timed(kind, texts[kind], sides, missing)
        for side in sides.keys() & missing.keys():
            del sides[side]
        for prefix, case in (("", first), (_AGAIN, again)):
            found = {side: taken[prefix + side] for side in sides if prefix + side in taken}
            row.add(case + suffix, found)
    for side, reason in missing.items():
        row.missing[side + suffix] = reason


_AGAIN = "again "


def _timed(
    kind: str, texts: Sequence[str], sides: Mapping[str, Encode], missing: dict[str, str]
) -> dict[str, list[float]]:
    """Time all sides; the reason of a peer whose tokens differ goes into `missing`."""

    def prepare(number: int) -> tuple[Sides, Check]:
        text = texts[number + 1]

        def encoding(encode: Encode) -> Any:
            return lambda: encode(text)

        def check(results: dict[str, Any]) -> None:
            what = f"tokens of {kind}"
            for name in results.keys() - {ABUT}:
                side = name.removeprefix(_AGAIN)
                try:
                    require_same(what, side, results[ABUT], results[name])
                except ResultsDiffer as differ:
                    # `tokenizers` is the reference: if abut differs from it, abut is wrong.
                    if side in (ABUT, TOKENIZERS, FAST):
                        raise
                    missing[side] = str(differ).partition("\n")[0]

        # Each side runs after each other side equally often, because the caches that one leaves
        # behind change the time of the next. `tokenizers` runs last: it frees a string for each
        # token, and the allocator sorts them during the following calls. After it, the second
        # encode of a megabyte took abut 4.9 ms instead of 3.4, and gigatoken 5.2 instead of 3.7.
        quick = [side for side in sides if side not in (*missing, TOKENIZERS, FAST)]
        orders = list(permutations(quick))
        slow = [side for side in (TOKENIZERS, FAST) if side in sides]
        timed: dict[str, Callable[[], Any]] = {}
        for names in (orders[number % len(orders)], slow):
            timed |= {name: encoding(sides[name]) for name in names}
            timed |= {_AGAIN + name: timed[name] for name in names if name != FAST}
        return timed, check

    return interleave(prepare, len(texts) - 1)
