"""Encoding many texts in one call, on all cores, in a separate process."""

import json

from benchmarks.batching import ALONE, BATCH, GIGATOKEN, TOKENIZERS
from benchmarks.figures import ResultsDiffer, Row
from benchmarks.own_process import run_module
from benchmarks.timing import ALL_THREADS
from benchmarks.workbench import Workbench

_OF_THE_CORES, _OF_ONE_CORE = 0.8, 1.1


def measure(workbench: Workbench) -> Row:
    """Encode many texts, many short texts, and a few that are not enough work for two threads."""
    scale, cores = workbench.scale, workbench.cores
    cases = {
        f"{count:,} x {size:,} bytes": (count, size, rounds)
        for count, size, rounds in (scale.batch_many, scale.batch_short, scale.batch_few)
    }
    row = Row(
        "encode_batch",
        f"encode many texts in one call, on {len(cores)} cores",
        equal="all token ids of all texts, in every round",
        notes=[
            "Mixed text, new in every round. All sides may use all cores, except for abut's calls "
            "with one text at a time, which use one. Calls that take microseconds are repeated "
            "100 times per measurement.",
            "abut's two sides have a tokenizer each, because a tokenizer remembers words.",
            "Two cores are not twice as fast as one. On an Intel Xeon, two processes that encoded "
            "half of the texts each were 1.6 to 1.8 times as fast as one process (200 x 4,000 "
            "bytes), and 1.3 to 1.9 times (1,000 x 200 bytes).",
        ],
    )
    plan = {
        "file": str(workbench.tokenizer_json),
        "cores": sorted(cores),
        "cases": cases,
        "reasons": dict(workbench.reasons),
    }
    found = run_module("batching", json.dumps(plan), environment=ALL_THREADS)
    if "differ" in found:
        raise ResultsDiffer(found["differ"])
    row.missing |= found["missing"]
    many, short, few = cases
    for case, taken in found["taken"].items():
        row.add(case, taken)
    for case in (many, short):
        row.need_ratio(
            f"one text at a time ÷ encode_batch, {case}, {len(cores)} cores", (ALONE, case),
            (BATCH, case), "at least", _OF_THE_CORES * len(cores),
        )  # fmt: skip
    row.need_ratio(
        f"encode_batch ÷ one text at a time, {few}", (BATCH, few), (ALONE, few), "at most",
        _OF_ONE_CORE,
    )  # fmt: skip
    for case in cases:
        for peer in (GIGATOKEN, TOKENIZERS):
            row.need_faster(peer, case, 1, side=BATCH)
    return row
