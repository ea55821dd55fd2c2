"""The rows of the table, one module each, in the order in which they are measured and printed.

A row is a function that takes the `Stage` and returns its `Row`.
"""

from collections.abc import Callable
from typing import TypeAlias

from abut.bench.figures import Row
from abut.bench.rows import (
    append,
    collate,
    encode,
    engine_reply,
    load,
    memory,
    open_text,
    pace,
    rollouts,
    seam,
    stitch,
)
from abut.bench.stage import Stage

Measure: TypeAlias = Callable[[Stage], Row]

ROWS: dict[str, Measure] = {
    "encode": encode.measure,
    "append": append.measure,
    "open_text": open_text.measure,
    "seam": seam.measure,
    "rollouts": rollouts.measure,
    "pace": pace.measure,
    "collate": collate.measure,
    "stitch": stitch.measure,
    "engine_reply": engine_reply.measure,
    "load": load.measure,
    "memory": memory.measure,
}
