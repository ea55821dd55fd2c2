"""Measures rows, one after the other, in a process in which every side has one thread.

Started by `benchmarks.command` in the peers' environment; writes one JSON object per line: first
the machine, then each row as soon as it is measured.
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import ResultsDiffer, Row
from benchmarks.machine import describe
from benchmarks.peers import PeerMissing
from benchmarks.rows import ROWS
from benchmarks.scale import Scale
from benchmarks.timing import available_cores, stay_on_one_core
from benchmarks.workbench import Workbench


def main(plan: Mapping[str, Any]) -> None:
    """Measure the `rows` of a plan, which also has `tokenizer`, `quick` and peers' `reasons`."""
    # Peers print to stdout: send that to stderr, so that stdout has only JSON lines.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as lines:
        os.dup2(2, 1)
        cores = available_cores()
        core = stay_on_one_core()
        scale = Scale.quick() if plan["quick"] else Scale()
        workbench = Workbench(Path(plan["tokenizer"]), scale, plan["reasons"], cores)
        _write(lines, {"machine": describe(workbench, core)})
        for name in plan["rows"]:
            _write(lines, {"row": measure(name, workbench).as_dict()})


def measure(name: str, workbench: Workbench) -> Row:
    """Measure one row; if that fails, return a row with the error, so that the others still run."""
    try:
        return ROWS[name](workbench)
    except (PeerMissing, ResultsDiffer) as error:
        return Row(name, work=name, error=str(error))
    except Exception as error:
        traceback.print_exc()
        return Row(name, work=name, error=f"{type(error).__name__}: {error}")


def _write(lines: Any, value: Mapping[str, Any]) -> None:
    lines.write(json.dumps(value) + "\n")
    lines.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
