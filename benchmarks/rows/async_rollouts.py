"""Asynchronous rollouts with abut's worker and with TRL's: the same server, environment and game.

The server runs in its own process and always gives the same answers, with a delay; the
environment's tool takes time; both workers deliver the same number of rows. The rewards are
compared first. The fuller the slots, the more tokens the policy samples per second.
"""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.figures import Row, require_same
from benchmarks.own_process import run_module
from benchmarks.workbench import Workbench

ABUT, TRL = "abut", "TRL AsyncRolloutWorker"
SERVER = "server"
_CASES = {
    "s": "wall time per sampled token",
    "cpu": "CPU time per turn",
}


def measure(workbench: Workbench) -> Row:
    """Take the same number of rows from each worker, in turn, each in its own process."""
    scale = workbench.scale
    row = Row(
        "async_rollouts",
        f"stream {scale.stream_rows} rollouts of {scale.stream_turns} turns, "
        f"{scale.stream_slots} at once",
        equal="the rewards of all rollouts",
        notes=[
            f"A server takes {1000 * scale.stream_sample_s:g} ms for each sample. A tool call "
            f"takes {1000 * scale.stream_tool_s:g} ms, and one in eight takes ten times that.",
            "TRL's loop runs as in its worker's process, but without the vLLM package, which its "
            "worker imports and does not use.",
        ],
    )
    # Without TRL there is no trainer for either side: the row fails with that reason.
    workbench.peer("trl", "trl.experimental.async_grpo.async_rollout_worker")
    sides = [ABUT, TRL]
    taken: dict[str, dict[str, list[float]]] = {case: {} for case in (*_CASES, "trained")}
    for _ in range(scale.stream_rounds):
        said = {side: _played(workbench, side) for side in sides}
        for side in [side for side in sides if "missing" in said[side]]:
            row.missing[side] = said.pop(side)["missing"]
            sides.remove(side)
        for side in sides[1:]:
            require_same("rewards", side, said[ABUT]["rewards"], said[side]["rewards"])
        for side, found in said.items():
            for case in taken:
                taken[case].setdefault(side, []).append(float(found[case]))
    row.add(_CASES["s"], taken["s"])
    row.add(_CASES["cpu"], taken["cpu"])
    for side, shares in taken["trained"].items():
        row.notes.append(f"{side}: {statistics.median(shares):.0%} of sampled tokens are trained.")
    row.need_faster(TRL, _CASES["s"], 1)
    return row


def _played(workbench: Workbench, side: str) -> Mapping[str, Any]:
    quick = "quick" if workbench.scale.stream_rows < 64 else "full"
    found: Mapping[str, Any] = run_module("stream_worker", side, str(workbench.folder), quick)
    return found
