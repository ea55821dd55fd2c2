"""Rollouts that stream, beside TRL's own worker: one server, one environment, one game.

The server is a process of its own and answers what it always answers, after a while; the
environment's tool takes time; of both workers the same number of rows is taken. What is compared
first is the reward of each. The fuller the slots, the more tokens the policy samples per second.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.figures import Row, require_same
from benchmarks.workbench import Workbench

ABUT, TRL = "abut", "TRL AsyncRolloutWorker"
SERVER = "server"
_CASES = {
    "s": "a sampled token",
    "cpu": "the processor, for a turn",
}


def measure(workbench: Workbench) -> Row:
    """Take as many rows of each worker, in a process of its own, in turns."""
    scale = workbench.scale
    row = Row(
        "async_rollouts",
        f"stream rollouts of {scale.stream_turns} turns, {scale.stream_slots} at once, until "
        f"{scale.stream_rows} rows are there",
        equal="the rewards of all rows",
        notes=[
            f"Each sample takes {1000 * scale.stream_sample_s:g} ms at a server; each call of a "
            f"tool {1000 * scale.stream_tool_s:g} ms, and of one in eight ten times that.",
            "TRL's loop runs as in its worker's process, without the vLLM package that its "
            "worker asks for and does not use.",
        ],
    )
    # Without TRL there is no trainer for either side, and the row says so.
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
        row.notes.append(f"{side}: {statistics.median(shares):.0%} of the sampled tokens trained.")
    row.need_faster(TRL, _CASES["s"], 1)
    return row


def _played(workbench: Workbench, side: str) -> Mapping[str, Any]:
    command = [sys.executable, "-m", "benchmarks.stream_worker", side, str(workbench.folder)]
    quick = "quick" if workbench.scale.stream_rows < 64 else "full"
    done = subprocess.run([*command, quick], capture_output=True, text=True, check=True)
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
