"""One environment on threads, on OpenEnv servers, and in actors of a Ray cluster."""

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
"""The peers that each side needs, each with one of its modules."""
CLOCK, RATE = "wall time per turn", "turns per second"
OWN, ALL = "CPU time per turn, trainer's process", "CPU time per turn, all processes"
START, HOSTS, MEMORY = "startup", "memory of the hosts", "memory per environment"


def measure(workbench: Workbench) -> Row:
    """Play the same rollouts on all sides in turn, each run in its own process."""
    scale = workbench.scale
    row = Row(
        "environments",
        "play a turn with the environment on a thread, on a server or in an actor",
        equal="ids, masks and rewards of all rollouts",
        notes=[
            f"{THREADS}: threads of the trainer's process. {OPENENV}: {scale.envs_processes} "
            f"servers of the openenv package, over websockets. {RAY}: {scale.envs_processes} "
            "actors of a Ray cluster on this machine. This row uses all cores, because the sides "
            "have several processes.",
            "The policy answers immediately, with about 60 tokens; a reply has "
            f"{REPLY_BYTES:,} bytes. CPU times include abut's engine.",
            f"{START}: the time until {scale.envs_at_once} environments are in their episodes. "
            f"{HOSTS}: how much the memory of all processes grows until each host process has one "
            f"environment. {MEMORY}: how much it grows per further environment; each environment "
            f"holds {STATE_BYTES:,} bytes of its own.",
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
        row.notes.append(
            "Memory and other processes were not measured: there is no /proc/PID/smaps_rollup."
        )
    return row


def loads_of(scale: Scale) -> dict[str, Load]:
    """Return the loads by their name in the cases."""
    at_once = Load(scale.envs_at_once, scale.envs_turns)
    alone = Load(1, scale.envs_alone_turns)
    busy = Load(scale.envs_busy_rollouts, scale.envs_busy_turns, scale.envs_busy_s)
    return {
        f"{at_once.rollouts} at once": at_once,
        "one by itself": alone,
        f"{busy.rollouts} with {busy.busy_s * 1e3:g} ms of work per step": busy,
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
    """Return the cores of the parent process; this process is pinned to one of them."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(os.getppid()))


def _values(scale: Scale, found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return each case with the value of one run of a side."""
    values: list[tuple[str, float | None]] = []
    for (name, load), played in zip(loads_of(scale).items(), found["loads"], strict=True):
        clock = (CLOCK, played["turn"]) if load.rollouts == 1 else (RATE, 1 / played["turn"])
        for what, value in (clock, (OWN, played["own"]), (ALL, played["all"])):
            values.append((f"{name}, {what}", value))
    values += [(START, found["start"]), (HOSTS, found["hosts"]), (MEMORY, found["environment"])]
    return [(case, value) for case, value in values if value is not None]


def _require_same_rows(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Require that all sides played the same rollouts.

    Raises:
        ResultsDiffer: one side did not.
    """
    rows = {side: [load["rows"] for load in one["loads"]] for side, one in found.items()}
    for side, digests in rows.items():
        if digests != rows[THREADS]:
            raise ResultsDiffer(
                f"the rollouts of {THREADS} and of {side} differ\n"
                "hint: times are not compared if the results differ; this is a bug in abut, report "
                "it"
            )
