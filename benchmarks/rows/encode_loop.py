"""Encoding in a tight loop: texts of one size, without other work between them.

The row `encode` measures one text per round, between other work. A loop has other costs: the
overhead of each call counts for short texts, and the CPU caches have only the loop's own data.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.encoders import ABUT, GIGATOKEN, SHAPES, TOKENIZERS, Encode, new_tokenizer, peers_of
from benchmarks.figures import Row, require_same
from benchmarks.peers import PeerMissing
from benchmarks.texts import Corpus, pieces
from benchmarks.timing import Check, Sides, interleave
from benchmarks.workbench import Workbench

FIRST, AGAIN, EVICTED = "first", "again, warm caches", "again, evicted caches"


def measure(workbench: Workbench) -> Row:
    """Encode mixed text and code of each size with each shape."""
    scale = workbench.scale
    row = Row(
        "encode_loop",
        f"encode {scale.loop_bytes:,} bytes in a tight loop, as texts of one size",
        equal="all token ids of all texts, in every round, and in the warm-up also with those of "
        "`tokenizers`",
        notes=[
            "first: new texts that no side has seen. again: the same texts, either immediately "
            f"(warm caches), or after writing {scale.eviction_bytes:,} bytes of other memory "
            "(evicted caches).",
            "The texts have the same number of characters each; their bytes are a mean.",
            "abut returns int64 arrays and gigatoken uint32 arrays, so abut's result touches twice "
            "as much new memory. For code that is seen for the first time, the two are about "
            "equally fast, and their ratio differs by up to a fifth from run to run. Over 48 "
            "rounds, gigatoken ÷ abut was 0.98 to 1.03 for 128,000 bytes on an AMD EPYC (the "
            "medians of the four patterns; half of the rounds were between 0.85 and 1.14). On an "
            "Intel Xeon it was 0.97 to 1.18 for all sizes, below 1 only with Tekken's pattern. "
            "With an allocator that keeps its memory (MALLOC_TRIM_THRESHOLD_ and "
            "MALLOC_MMAP_THRESHOLD_ set to 1 GB) the medians of 32 rounds on the EPYC were 1.03 "
            "to 1.07.",
        ],
    )
    waste = np.zeros(scale.eviction_bytes, np.uint8)

    def evict() -> None:
        waste[:] = 1 + waste[0]

    corpus = Corpus(2)
    texts = {
        (kind, size): [
            pieces(draw(scale.loop_bytes), scale.loop_bytes // size)
            for _ in range(scale.loop_rounds + 1)
        ]
        for kind, draw in (("mixed text", corpus.mixed), ("code", corpus.code))
        for size in scale.loop_sizes
    }
    with TemporaryDirectory() as folder:
        for suffix, file in _files(workbench, row, Path(folder)).items():
            tokenizer = new_tokenizer(file)
            oracle = workbench.peer("tokenizers").Tokenizer.from_file(str(file))
            peers, missing = peers_of(workbench, file, tokenizer, [GIGATOKEN])
            row.missing |= {side + suffix: reason for side, reason in missing.items()}
            sides = {ABUT: tokenizer.encode, **peers}
            for (kind, size), rounds in texts.items():
                case = f"{kind}, {size:,} bytes each{suffix}"
                _add(row, case, rounds, sides, evict, oracle)
    return row


def _files(workbench: Workbench, row: Row, folder: Path) -> dict[str, Path]:
    """Return the tokenizer.json of each shape with a pattern, by the suffix of its cases."""
    files = {"": workbench.tokenizer_json}
    for shape in SHAPES:
        try:
            made = shape.on_vocabulary_of(workbench.tokenizer_json, folder)
            files[f", {shape.name}'s pattern"] = made
        except PeerMissing as reason:
            row.missing[shape.name] = str(reason)
    return files


def _add(
    row: Row,
    name: str,
    rounds: Sequence[Sequence[str]],
    sides: Mapping[str, Encode],
    evict: Callable[[], None],
    oracle: Any,
) -> None:
    """Measure all sides with the texts of each round; require abut to be as fast as its peer."""

    def loop(encode: Encode, texts: Sequence[str]) -> Callable[[], Any]:
        def run() -> list[Any]:
            return [encode(text) for text in texts]

        return run

    def prepare(number: int) -> tuple[Sides, Check]:
        texts = rounds[number + 1]
        timed: dict[str, Callable[[], Any]] = {}
        for side in list(sides) if number % 2 else [*sides][::-1]:
            run = loop(sides[side], texts)
            timed |= {f"{side} {FIRST}": run, f"{side} {AGAIN}": run}
            timed |= {f"{side} eviction": evict, f"{side} {EVICTED}": run}

        def check(results: dict[str, Any]) -> None:
            ours = np.concatenate(results[f"{ABUT} {FIRST}"])
            for named, found in results.items():
                if found is not None:
                    require_same(name, named, ours, np.concatenate(found))
            if number < 0:
                theirs = [oracle.encode(text, add_special_tokens=False).ids for text in texts]
                require_same(name, TOKENIZERS, ours, np.concatenate(theirs))

        return timed, check

    taken = interleave(prepare, len(rounds) - 1)
    for case in (FIRST, AGAIN, EVICTED):
        row.add(f"{name}, {case}", {side: taken[f"{side} {case}"] for side in sides})
        row.need_faster(GIGATOKEN, f"{name}, {case}", 1)
