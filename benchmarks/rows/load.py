"""Loading a tokenizer and its first encode, each time in a new process."""

from pathlib import Path
from typing import Any

from benchmarks.figures import Row, require_same
from benchmarks.own_process import run_module
from benchmarks.workbench import Workbench

PEER = "tokenizers"
BOUNDS = {"time": 0.5, "memory": 1.0}
"""The most that abut may take, as a fraction of the peer."""


def measure(workbench: Workbench) -> Row:
    """Load the same file with both sides, in turn."""
    workbench.peer(PEER)
    row = Row(
        "load",
        f"load a tokenizer of {workbench.tokenizer.vocab_size:,} tokens and encode once",
        equal="the token ids of the encode",
    )
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in range(workbench.scale.load_rounds):
        loaded = {name: _load(name, workbench.tokenizer_json) for name in ("abut", PEER)}
        require_same("the first encode", PEER, loaded["abut"]["ids"], loaded[PEER]["ids"])
        for side, measured in loaded.items():
            for case in ("time", "memory", "peak memory"):
                if measured[case] is not None:
                    taken.setdefault(case, {}).setdefault(side, []).append(measured[case])
    for case, values in taken.items():
        row.add(case, values, unit="s" if case == "time" else "B")
        if bound := BOUNDS.get(case):
            row.need_ratio(f"abut ÷ {PEER}, {case}", ("abut", case), (PEER, case), "at most", bound)
    if "memory" in taken:
        row.notes.append("memory: growth of the process; peak memory: its largest growth.")
    else:
        row.notes.append("Memory was not measured: this system has no /proc/self/status.")
    return row


def _load(side: str, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = run_module("loading", side, str(path))
    return found
