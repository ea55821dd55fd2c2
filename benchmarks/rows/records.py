"""Writing the records of a batch, each time in a new process."""

from typing import Any

from benchmarks.figures import Row, require_same
from benchmarks.own_process import run_module
from benchmarks.recording import FORMS
from benchmarks.workbench import Workbench

PARQUET, LINES = FORMS


def measure(workbench: Workbench) -> Row:
    """Write the same rollouts in both formats, in turn."""
    rollouts, tokens = workbench.scale.recorded_rollouts, workbench.scale.collate_tokens
    row = Row(
        "records",
        f"record {rollouts} rollouts of {tokens:,} tokens",
        equal="the records, as they are read again",
        notes=[
            "Records include the conversations, 4 bytes per token. peak memory: the largest growth "
            "of the process."
        ],
    )
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in range(workbench.scale.load_rounds):
        wrote: dict[str, dict[str, Any]] = {
            form: run_module("recording", form, str(rollouts), str(tokens)) for form in FORMS
        }
        require_same("records", LINES, wrote[PARQUET]["digest"], wrote[LINES]["digest"])
        for form, measured in wrote.items():
            for case in ("time", "size", "peak memory"):
                if measured[case] is not None:
                    taken.setdefault(case, {}).setdefault(form, []).append(measured[case])
    for case, values in taken.items():
        row.add(case, values, unit="s" if case == "time" else "B")
    row.need_ratio("JSON lines ÷ Parquet, size", (LINES, "size"), (PARQUET, "size"), "at least", 2)
    return row
