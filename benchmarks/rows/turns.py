"""What a turn takes of the processor, and how many rollouts can be in flight."""

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
    "asyncio alone": "none",
}
OURS = [side for side, env in SIDES.items() if env != "none"]
_TURN_AT_ONCE_S, _TURN_ALONE_S, _OF_SLOWEST = 70e-6, 250e-6, 1.15


def measure(workbench: Workbench) -> Row:
    """Play with each kind of environment, at once and with delays; then a crowd."""
    scale = workbench.scale
    row = Row(
        "turns",
        "play a turn, by the time of the processor",
        equal="ids and masks of all rows, with synchronous and with asynchronous environments",
        notes=[
            f"A sample of some 60 tokens, and {scale.reply_bytes:,} bytes of reply. With template, "
            "deadlines and slots; each run in a process of its own.",
            f"Delays are drawn from a log-normal distribution, sigma {SIGMA:g}, one for each "
            "sample and one for each step: hardly two turns come in one moment, so each wakes "
            "everything that it needs.",
            "asyncio alone: as many waits, and as many ways from one loop to another and back, by "
            "its own `run_coroutine_threadsafe`; no conversation, no deadline, no slot.",
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
    row.add(case, {"a turn": [found["turn"]]})
    row.add(case, {"the batch": [found["seconds"]], SLOWEST: [found["slowest"]]})
    row.need_ratio(
        f"the batch ÷ {SLOWEST}, {case}", ("the batch", case), (SLOWEST, case), "at most",
        _OF_SLOWEST,
    )  # fmt: skip
    if found["memory"] is not None:
        row.add(case, {"memory of a rollout, at most": [found["memory"]]}, unit="B")
        row.notes.append(f"Memory is that of rollouts of {found['tokens']:,.0f} tokens.")


def _case(crowd: Crowd) -> str:
    delays = f"delays of {crowd.median_s:g} s" if crowd.median_s else "all at once"
    return f"{crowd.rollouts:,} rollouts of {crowd.turns} turns, {delays}"


def _play(workbench: Workbench, crowd: Crowd) -> dict[str, Any]:
    found: dict[str, Any] = run_module(
        "crowd", str(workbench.folder), json.dumps(dataclasses.asdict(crowd))
    )
    return found


def _require_same_rows(found: Mapping[str, dict[str, Any]]) -> None:
    if len({found[side]["rows"] for side in OURS}) > 1:
        raise ResultsDiffer(
            "the rows of synchronous and of asynchronous environments differ\n"
            "hint: times of different results mean nothing; this is a defect of abut, report it"
        )
