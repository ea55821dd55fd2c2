"""One environment in three places: on threads, on OpenEnv servers, in actors of a Ray cluster."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from benchmarks.env_load import OPENENV, RAY, THREADS, Load, Side
from benchmarks.far_env import REPLY_BYTES, STATE_BYTES
from benchmarks.figures import ResultsDiffer, Row
from benchmarks.own_process import run_module
from benchmarks.peers import PeerMissing
from benchmarks.scale import Scale
from benchmarks.workbench import Workbench

_NEEDS = {
    THREADS: (),
    OPENENV: (("openenv", "openenv"), ("openenv", "websockets")),
    RAY: (("ray", "ray"),),
}
"""The peers of each side, with a module of each."""
CLOCK, OWN, ALL, RATE = "the clock", "our process", "all processes", "turns per second"
START, HOSTS, MEMORY = "start", "memory of what hosts them", "memory of an environment"


def measure(workbench: Workbench) -> Row:
    """Play the same on all sides, in turn, each run in a process of its own."""
    scale = workbench.scale
    row = Row(
        "environments",
        "play a turn with its environment on a thread, on a server, in an actor",
        equal="ids, masks and rewards of all rollouts",
        notes=[
            f"{OPENENV}: {scale.envs_processes} servers of the openenv package, over websockets. "
            f"{RAY}: {scale.envs_processes} actors on a cluster that is started on this machine. "
            "Unlike other rows on all cores, since each side has processes of its own.",
            f"{THREADS}: no process but ours. The policy answers at once, with some 60 tokens; a "
            f"reply has {REPLY_BYTES:,} bytes. {OWN} and {ALL}: seconds of the processor for a "
            "turn, the engine's part included.",
            f"{START}: until {scale.envs_at_once} environments are in their episodes. {HOSTS}: by "
            "what all processes have grown when each of them has one environment; "
            f"{MEMORY}: by what they grow with one more, which keeps {STATE_BYTES:,} bytes itself.",
        ],
    )
    sides = [side for side in _NEEDS if _is_there(workbench, side, row)]
    loads = loads_of(scale)
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in range(scale.envs_rounds):
        found = {side: _played(workbench, side, loads) for side in sides}
        _require_same_rows(found)
        for side, one in found.items():
            for case, value in _values(scale, one):
                taken.setdefault(case, {}).setdefault(side, []).append(value)
    for case, values in taken.items():
        unit = "B" if case.startswith("memory") else "/s" if case.endswith(RATE) else "s"
        row.add(case, values, unit=unit)  # type: ignore[arg-type]
    if MEMORY not in taken:
        row.notes.append("Memory and other processes: this system has no /proc/PID/smaps_rollup.")
    return row


def loads_of(scale: Scale) -> dict[str, Load]:
    """What is played, by its name in the cases."""
    at_once = Load(scale.envs_at_once, scale.envs_turns)
    alone = Load(1, scale.envs_alone_turns)
    busy = Load(scale.envs_busy_rollouts, scale.envs_busy_turns, scale.envs_busy_s)
    return {
        f"{at_once.rollouts} at once": at_once,
        "one alone": alone,
        f"{busy.rollouts} that work {busy.busy_s * 1e3:g} ms in a step": busy,
    }


def _is_there(workbench: Workbench, side: str, row: Row) -> bool:
    try:
        for peer, module in _NEEDS[side]:
            workbench.peer(peer, module)
    except PeerMissing as error:
        row.missing[side] = str(error)
        return False
    return True


def _played(workbench: Workbench, name: str, loads: Mapping[str, Load]) -> dict[str, Any]:
    scale = workbench.scale
    side = Side(name, scale.envs_processes, scale.envs_at_once, [*loads.values()], _cores())
    found: dict[str, Any] = run_module(
        "env_side", json.dumps(dataclasses.asdict(side)), str(workbench.folder)
    )
    return found


def _cores() -> list[int]:
    """Those of whoever started the benchmark: this process has kept one of them."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(os.getppid()))


def _values(scale: Scale, found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Each case with what a run of a side gave for it."""
    values: list[tuple[str, float | None]] = []
    for (name, load), played in zip(loads_of(scale).items(), found["loads"], strict=True):
        clock = (CLOCK, played["turn"]) if load.rollouts == 1 else (RATE, 1 / played["turn"])
        for what, value in (clock, (OWN, played["own"]), (ALL, played["all"])):
            values.append((f"{name}, {what}", value))
    values += [(START, found["start"]), (HOSTS, found["hosts"]), (MEMORY, found["environment"])]
    return [(case, value) for case, value in values if value is not None]


def _require_same_rows(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Require that all sides have played the same.

    Raises:
        ResultsDiffer: one has not.
    """
    rows = {side: [load["rows"] for load in one["loads"]] for side, one in found.items()}
    for side, digests in rows.items():
        if digests != rows[THREADS]:
            raise ResultsDiffer(
                f"the rollouts of {THREADS} and of {side} differ\n"
                "hint: times of different results mean nothing; this is a defect of abut, report it"
            )
