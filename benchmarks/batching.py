"""Encodes many texts per call, on all cores, in a separate process, and prints the times as JSON.

The row `encode_batch` starts it with one JSON object. Batches are compared with abut's calls for
one text at a time, on one core.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoders import new_tokenizer
from benchmarks.figures import ResultsDiffer, require_same
from benchmarks.peers import PeerMissing, load
from benchmarks.texts import Corpus, pieces
from benchmarks.timing import Check, Sides, interleave

ALONE, BATCH = "abut encode, one text at a time", "abut encode_batch"
GIGATOKEN, TOKENIZERS = "gigatoken encode_batch", "tokenizers encode_batch_fast"
_SHORT_CALLS = 100
"""Calls per measurement, if a call takes microseconds."""

EncodeBatch = Callable[[Sequence[str]], Sequence[Any]]


def main(plan: Mapping[str, Any]) -> None:
    """Encode with all sides, and print their times, or the difference between their results.

    Args:
        plan: `file` of the tokenizer, `cores`, `cases` (the number of texts, the bytes of each, and
            rounds, by name), and `reasons` of missing peers.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, plan["cores"])
    missing: dict[str, str] = {}
    sides = _sides(Path(plan["file"]), plan["reasons"], missing)
    corpus, taken = Corpus(9), {}
    try:
        for case, (count, size, rounds) in plan["cases"].items():
            taken[case] = _timed(sides, corpus, count, size, rounds, missing)
        found: dict[str, Any] = {"taken": taken, "missing": missing}
    except ResultsDiffer as differ:
        found = {"differ": str(differ)}
    sys.stdout.write(json.dumps(found) + "\n")


def _sides(
    file: Path, reasons: Mapping[str, str], missing: dict[str, str]
) -> dict[str, EncodeBatch]:
    # With one tokenizer for both sides, the second of a round finds the words of the first: its
    # time was half, and the ratio of the medians was anything between 0.7 and 1.6.
    alone, batch = new_tokenizer(file), new_tokenizer(file)
    sides: dict[str, EncodeBatch] = {
        ALONE: lambda texts: [alone.encode(text) for text in texts],
        BATCH: batch.encode_batch,
    }
    try:
        oracle = load("tokenizers", "tokenizers", reasons).Tokenizer.from_file(str(file))
        sides[TOKENIZERS] = lambda texts: [
            encoding.ids for encoding in oracle.encode_batch_fast(texts, add_special_tokens=False)
        ]
    except PeerMissing as reason:
        missing[TOKENIZERS] = str(reason)
    try:
        sides[GIGATOKEN] = load("gigatoken", "gigatoken", reasons).Tokenizer(file).encode_batch
    except PeerMissing as reason:
        missing[GIGATOKEN] = str(reason)
    except Exception as error:  # it raises any exception for a file that it does not support
        missing[GIGATOKEN] = f"gigatoken cannot read this tokenizer: {error}"
    return sides


def _timed(
    sides: Mapping[str, EncodeBatch],
    corpus: Corpus,
    count: int,
    size: int,
    rounds: int,
    missing: dict[str, str],
) -> dict[str, list[float]]:
    """Return the seconds of each side for `count` texts of about `size` bytes, new each round."""
    # A call of a few microseconds is repeated, or the clock would be most of the time.
    calls = _SHORT_CALLS if count * size < 32_000 else 1

    def prepare(number: int) -> tuple[Sides, Check]:
        texts = pieces(corpus.mixed(count * size), count)

        def calling(encode: EncodeBatch) -> Callable[[], Sequence[Any]]:
            def call() -> Sequence[Any]:
                for _ in range(calls - 1):
                    encode(texts)
                return encode(texts)

            return call

        def check(results: dict[str, Any]) -> None:
            expected = results[ALONE]
            for name in results.keys() - {ALONE}:
                try:
                    _require_same(name, expected, results[name])
                except ResultsDiffer as differ:
                    if name != GIGATOKEN:  # `tokenizers` is the reference
                        raise
                    missing[name] = str(differ).partition("\n")[0]

        names = [name for name in sides if name not in missing]
        names = names[::-1] if number % 2 else names
        return {name: calling(sides[name]) for name in names}, check

    # Without a twin, the side that comes after `tokenizers` and its threads takes 30 % longer. In
    # every second round that is `encode_batch`, and it is never the calls with one text at a time.
    taken = interleave(prepare, rounds, twin=prepare if calls > 1 else None)
    return {
        name: [seconds / calls for seconds in values]
        for name, values in taken.items()
        if name not in missing
    }


def _require_same(name: str, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Require all ids of all texts, and their lengths, to be equal."""
    require_same("the lengths of the texts' tokens", name, _lengths(ours), _lengths(theirs))
    require_same("the tokens of the texts", name, _joined(ours), _joined(theirs))


def _lengths(texts: Sequence[Any]) -> list[int]:
    return [len(ids) for ids in texts]


def _joined(texts: Sequence[Any]) -> Any:
    return np.concatenate([np.asarray(ids) for ids in texts])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
