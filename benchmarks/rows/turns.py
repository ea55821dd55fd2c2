"""The CPU time of a turn, and the memory of many rollouts in flight."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from benchmarks.crowd import Crowd, EnvKind
from benchmarks.delays import SIGMA, SLOWEST
from benchmarks.figures import Need, ResultsDiffer, Row
from benchmarks.own_process import run_module
from benchmarks.workbench import Workbench

SIDES: dict[str, EnvKind] = {
    "abut, synchronous environments": "synchronous",
    "abut, asynchronous environments": "asynchronous",
    "a loop on asyncio around abut's Conversation": "loop",
    "asyncio alone": "none",
}
OURS = [side for side, env in SIDES.items() if env in ("synchronous", "asynchronous")]
_TURN_AT_ONCE_S, _TURN_ALONE_S, _OF_SLOWEST = 70e-6, 150e-6, 1.15


def measure(workbench: Workbench) -> Row:
    """Play with each kind of environment, without and with delays; then many rollouts at once."""
    scale = workbench.scale
    row = Row(
        "turns",
        "play a turn (CPU time)",
        equal="ids and masks of all rows, of abut's and the loop's",
        notes=[
            f"A turn is a sample of about 60 tokens and a reply of {scale.reply_bytes:,} bytes. It "
            "includes template, deadlines and slots. Each run has its own process.",
            f"Delays of samples and steps are drawn from a log-normal distribution with sigma "
            f"{SIGMA:g}. With delays a turn needs more CPU time, because few turns happen at the "
            "same moment, so each one wakes its threads and event loops by itself.",
            "asyncio alone: the same number of waits, and of switches between two event loops with "
            "`run_coroutine_threadsafe`, without conversations, deadlines and slots.",
            "A loop on asyncio around abut's Conversation does the same, and requests, reads and "
            "appends each sample and reply. It has no deadlines, retries, slots, records of turns, "
            "checks of the environment, or protection against environments that block the loop or "
            "fork.",
            "Without delays, Python's interpreter takes 62 % of a turn, the kernel 13 % (thread "
            "switches, page faults), memory allocation 10 %, and abut's Rust code 8 % (`perf`, "
            "Python 3.11). A turn makes 185 to 205 calls of Python functions, resumed coroutines "
            "included.",
            "Each synchronous environment has a thread of its own, so that one that is slow or "
            "hangs delays no other. Without delays, these threads are the difference between "
            "abut's turn (135 µs) and the loop's (79 µs): with one thread for all environments a "
            "turn takes 87 µs, and with their calls on the engine's own loop 79 µs. Deadlines, "
            "slots and versions of weights take less than the runs differ: without them it is 76 "
            "µs (medians of 7 runs that took turns, with these functions of the engine replaced; "
            "the rows were the same).",
            "All rollouts of a batch share one interpreter. On an Intel Xeon, the 204,800 turns of "
            "the 10,240 rollouts needed 68 to 80 s of CPU time (four runs), about as long as the "
            "slowest rollout takes (74 s). Turns come unevenly, so the batch took 1.3 to 1.4 times "
            "as long as that rollout.",
        ],
    )
    at_once = Crowd("synchronous", scale.turns_rollouts, scale.turns_turns, 0.0)
    alone = dataclasses.replace(
        at_once, rollouts=scale.turns_alone_rollouts, median_s=scale.turns_median_s
    )
    for crowd, bound_s in ((at_once, _TURN_AT_ONCE_S), (alone, _TURN_ALONE_S)):
        taken: dict[str, list[float]] = {}
        for _ in range(scale.turns_rounds):
            found = {
                side: _play(workbench, dataclasses.replace(crowd, env=env))
                for side, env in SIDES.items()
            }
            _require_same_rows(found)
            for side, one in found.items():
                taken.setdefault(side, []).append(one["turn"])
        row.add(_case(crowd), taken)
        for side in OURS:
            value = row.median(side, _case(crowd))
            assert value is not None
            row.needs.append(Need(f"{side}, {_case(crowd)}", value, "at most", bound_s, "s"))
    crowd = Crowd("asynchronous", scale.crowd_rollouts, scale.crowd_turns, scale.crowd_median_s)
    _add_crowd(row, crowd, _play(workbench, crowd))
    return row


def _add_crowd(row: Row, crowd: Crowd, found: dict[str, Any]) -> None:
    case = _case(crowd)
    row.add(case, {"CPU time per turn": [found["turn"]]})
    row.add(case, {"the batch": [found["seconds"]], SLOWEST: [found["slowest"]]})
    row.need_ratio(
        f"the batch ÷ {SLOWEST}, {case}", ("the batch", case), (SLOWEST, case), "at most",
        _OF_SLOWEST,
    )  # fmt: skip
    if found["memory"] is not None:
        row.add(case, {"peak memory per rollout": [found["memory"]]}, unit="B")
        row.notes.append(f"peak memory per rollout: for rollouts of {found['tokens']:,.0f} tokens.")


def _case(crowd: Crowd) -> str:
    delays = f"median delay {crowd.median_s:g} s" if crowd.median_s else "no delays"
    return f"{crowd.rollouts:,} rollouts of {crowd.turns} turns, {delays}"


def _play(workbench: Workbench, crowd: Crowd) -> dict[str, Any]:
    found: dict[str, Any] = run_module(
        "crowd", str(workbench.folder), json.dumps(dataclasses.asdict(crowd))
    )
    return found


def _require_same_rows(found: Mapping[str, dict[str, Any]]) -> None:
    if len({found[side]["rows"] for side, env in SIDES.items() if env != "none"}) > 1:
        raise ResultsDiffer(
            "the rows of synchronous and asynchronous environments and of the loop differ\n"
            "hint: times are not compared if the results differ; this is a bug in abut, report it"
        )
