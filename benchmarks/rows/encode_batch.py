"""Encoding many texts in one call, on all cores, in a process of its own."""

import json

from benchmarks.batching import ALONE, BATCH, GIGATOKEN, TOKENIZERS
from benchmarks.figures import ResultsDiffer, Row
from benchmarks.own_process import run_module
from benchmarks.timing import ALL_THREADS
from benchmarks.workbench import Workbench

_OF_THE_CORES, _OF_ONE_CORE = 0.8, 1.1


def measure(workbench: Workbench) -> Row:
    """Encode many texts, short ones, and a few that are no work for two threads."""
    scale, cores = workbench.scale, workbench.cores
    cases = {
        f"{count:,} x {size:,} bytes": (count, size)
        for count, size in (scale.batch_many, scale.batch_short, scale.batch_few)
    }
    row = Row(
        "encode_batch",
        f"encode many texts in one call, on {len(cores)} cores",
        equal="all token ids of all texts, in every round",
        notes=[
            "Mixed text, another one in every round. All sides may use all cores; abut's single "
            "calls are made one after the other, on one of them. A call that takes microseconds is "
            "made 100 times over."
        ],
    )
    plan = {
        "file": str(workbench.tokenizer_json),
        "cores": sorted(cores),
        "cases": cases,
        "rounds": scale.batch_rounds,
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
            f"one after the other ÷ encode_batch, {case}, {len(cores)} cores", (ALONE, case),
            (BATCH, case), "at least", _OF_THE_CORES * len(cores),
        )  # fmt: skip
    row.need_ratio(
        f"encode_batch ÷ one after the other, {few}", (BATCH, few), (ALONE, few), "at most",
        _OF_ONE_CORE,
    )  # fmt: skip
    for case in cases:
        for peer in (GIGATOKEN, TOKENIZERS):
            row.need_faster(peer, case, 1, side=BATCH)
    return row
