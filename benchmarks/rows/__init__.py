"""The rows of the benchmark, in printing order; each is a module or a package.

A row is a function that takes the `Workbench` and returns its `Row`.
"""

from collections.abc import Callable
from typing import TypeAlias

from benchmarks.figures import Row
from benchmarks.rows import (
    append,
    async_rollouts,
    collate,
    dialects,
    encode,
    encode_batch,
    encode_kinds,
    encode_loop,
    engine_reply,
    environments,
    gateway,
    image_memory,
    image_turn,
    load,
    memory,
    open_text,
    pace,
    records,
    rollouts,
    saved,
    seam,
    stitch,
    turns,
)
from benchmarks.workbench import Workbench

Measure: TypeAlias = Callable[[Workbench], Row]

ROWS: dict[str, Measure] = {
    "encode": encode.measure,
    "encode_loop": encode_loop.measure,
    "encode_kinds": encode_kinds.measure,
    "encode_batch": encode_batch.measure,
    "append": append.measure,
    "image_turn": image_turn.measure,
    "open_text": open_text.measure,
    "seam": seam.measure,
    "rollouts": rollouts.measure,
    "pace": pace.measure,
    "turns": turns.measure,
    "async_rollouts": async_rollouts.measure,
    "environments": environments.measure,
    "collate": collate.measure,
    "stitch": stitch.measure,
    "saved": saved.measure,
    "engine_reply": engine_reply.measure,
    "gateway": gateway.measure,
    "dialects": dialects.measure,
    "load": load.measure,
    "memory": memory.measure,
    "image_memory": image_memory.measure,
    "records": records.measure,
}
