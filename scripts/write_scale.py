"""Regenerate the tables of `docs/background/scale.md` from the results of `make bench`.

    python -m scripts.write_scale docs/background/performance.json docs/background/scale.md

The text between `<!-- begin NAME -->` and `<!-- end NAME -->` is replaced; all else is kept.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.agent_sessions import sessions
from benchmarks.scale import Scale
from benchmarks.table import number

NOT_YET = "not measured yet"
"""The cell of a figure whose row is not in the file yet."""

AT_ONCE, ALONE = "128 at once", "one by itself"
WORKS = "32 with 5 ms of work per step"
OURS, ALL = "CPU time per turn, trainer's process", "CPU time per turn, all processes"
CROWD = "10,240 rollouts of 20 turns, median delay 0.5 s"
SIZES = Scale()
RECORDED, PICTURES = SIZES.recorded_rollouts, SIZES.image_counts[-1]
AGENT = "Claude Code"


@dataclass(frozen=True)
class Cited:
    """A figure of `performance.json`."""

    row: str
    case: str
    side: str


ENGINE = Cited("turns", "512 rollouts of 20 turns, no delays", "abut, synchronous environments")
SPREAD = Cited("turns", "256 rollouts of 20 turns, median delay 0.1 s", ENGINE.side)
MEMORY = Cited("turns", CROWD, "peak memory per rollout")
BATCH, SLOWEST = (
    Cited("turns", CROWD, side) for side in ("the batch", "the slowest rollout by itself")
)
TOKEN = Cited("memory", "memory per token", "abut")
CALL = Cited("gateway", "after 30,000 tokens", "abut")
RECORDS, SIZE = (Cited("records", case, "Parquet") for case in ("time", "size"))
DIALECTS = [
    Cited("dialects", CALL.case, side) for side in ("Messages", "Responses", "generateContent")
]
PICTURE = Cited("image_turn", f"after {PICTURES} pictures", "abut")
FILES, TENSORS = (
    Cited("image_memory", f"the {case}", "abut")
    for case in ("files of all pictures", "tensors of one row")
)
ROWS, REQUESTS = (
    Cited("saved", f"{AGENT}: rows", side) for side in ("abut", "one row per request")
)
POOLS = ("threads", "OpenEnv", "RayPool")


def of_pool(case: str, pool: str) -> Cited:
    """Return a figure of the row `environments`."""
    return Cited("environments", case, pool)


class Measured:
    """The medians of `performance.json`.

    Raises:
        KeyError: a row is in the file, but a cited figure of it is not.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._rows = {row["name"] for row in found["rows"] if row["figures"]}
        self._medians = {
            Cited(row["name"], figure["case"], figure["side"]): float(figure["median"])
            for row in found["rows"]
            for figure in row["figures"]
        }

    def median(self, cited: Cited) -> float | None:
        """Return the median; None if its row has not been measured."""
        return self._medians[cited] if cited.row in self._rows else None


def tables(found: Mapping[str, Any]) -> dict[str, str]:
    """Return all tables by name."""
    measured = Measured(found)
    return {
        "limits": limits(measured),
        "pools": pools(measured),
        "plan": plan(measured),
        "agents": agents(measured),
    }


def limits(measured: Measured) -> str:
    """Return the table of what one process can do."""

    def time_of(cited: Cited) -> tuple[str, float | None]:
        return said(value := measured.median(cited), "s"), value

    def line(part: str, cited: Cited, what: str) -> tuple[str, ...]:
        text, value = time_of(cited)
        return part, text, f"{rate(value)} {what}" if value else NOT_YET, f"`{cited.row}`"

    recorded, size = measured.median(RECORDS), measured.median(SIZE)
    width, height = SIZES.image_size
    one = scaled(recorded, 1 / RECORDED)
    lines = [
        line("engine, turns without delays", ENGINE, "turns/s"),
        line("engine, turns with delays", SPREAD, "turns/s"),
        line("gateway, without sampling, after 30,000 tokens", CALL, "calls/s"),
        *(line(f"the same in {cited.side}", cited, "calls/s") for cited in DIALECTS),
        line(
            f"a turn with a screenshot of {width:,} x {height:,} pixels",
            PICTURE,
            "turns/s",
        ),
        (
            "recorder (Parquet), 8,192 tokens",
            said(one, "s"),
            f"{rate(one)} rollouts/s" if one else NOT_YET,
            "`records`",
        ),
    ]
    memory = [
        ("memory per rollout in flight", said(measured.median(MEMORY), "B"), "", "`turns`"),
        (
            "memory per token of a trajectory",
            said(measured.median(TOKEN), "B/token"),
            "",
            "`memory`",
        ),
        (
            "file size per rollout of 8,192 tokens",
            said(scaled(size, 1 / RECORDED), "B"),
            "",
            "`records`",
        ),
        (
            "the file of a screenshot",
            said(picture_bytes(measured, FILES), "B"),
            "",
            "`image_memory`",
        ),
        (
            "the tensors of a screenshot in a training step",
            said(picture_bytes(measured, TENSORS), "B"),
            "",
            "`image_memory`",
        ),
    ]
    return table(("part", "CPU time, or bytes", "one process", "row"), [*lines, *memory])


def pools(measured: Measured) -> str:
    """Return the table of one environment on threads, servers and actors."""
    lines = []
    for what, case, unit in (
        ("CPU time per turn, trainer's process", f"{AT_ONCE}, {OURS}", "s"),
        ("limit of one trainer process", f"{AT_ONCE}, {OURS}", "turns/s"),
        ("CPU time per turn, all processes", f"{AT_ONCE}, {ALL}", "s"),
        ("wall time per turn of one rollout by itself", f"{ALONE}, wall time per turn", "s"),
        (
            "steps with 5 ms of Python: CPU time per turn, trainer's process",
            f"{WORKS}, {OURS}",
            "s",
        ),
        ("startup of 128 environments", "startup", "s"),
        ("memory of all host processes", "memory of the hosts", "B"),
        ("memory of one more environment, which holds 1 MB", "memory per environment", "B"),
    ):
        values = [measured.median(of_pool(case, pool)) for pool in POOLS]
        cells = [
            (f"{rate(value)} turns/s" if value else NOT_YET)
            if unit == "turns/s"
            else said(value, unit)
            for value in values
        ]
        lines.append((what, *cells))
    return table(("", *POOLS), lines)


# Assumptions about the machines and the policy: replace these by your own figures first.
TRAINERS, ENGINES = 512, 480
IN_FLIGHT_PER_ENGINE = 64
TURN_TOKENS, TOKENS_PER_S, STEP_S = 250, 40, 2.0
ROLLOUT_TURNS = 20
ENV_BYTES, NODE_BYTES, SLOTS = 300e6, 512e9, 8
SEATS = 2

IN_FLIGHT = ENGINES * IN_FLIGHT_PER_ENGINE
TURNS_S = IN_FLIGHT / (TURN_TOKENS / TOKENS_PER_S + STEP_S)
RANK_TURNS_S = TURNS_S / TRAINERS
RANK_ROLLOUTS = IN_FLIGHT / TRAINERS
PLAN_HEAD = ("part", "load", "where", "needs")


def plan(measured: Measured) -> str:
    """Return the load of a thousand GPUs on each part, and the share of a core that it needs."""
    memory = scaled(measured.median(MEMORY), RANK_ROLLOUTS)
    ray = of_pool(f"{AT_ONCE}, {OURS}", "RayPool")
    recorded = scaled(measured.median(RECORDS), 1 / RECORDED)
    nodes = IN_FLIGHT * ENV_BYTES / NODE_BYTES
    lines = [
        ("rollouts in flight", f"{IN_FLIGHT:,}", f"{RANK_ROLLOUTS:.0f} per rank", ""),
        ("turns", f"{TURNS_S:,.0f} /s", f"{RANK_TURNS_S:.1f} /s per rank", ""),
        share("engine and threads", RANK_TURNS_S, "each rank", measured.median(SPREAD)),
        share("pool on Ray", RANK_TURNS_S, "each rank", measured.median(ray)),
        share("gateway", RANK_TURNS_S, "one address per rank", measured.median(CALL)),
        share("gateway", TURNS_S, "one address for all ranks", measured.median(CALL)),
        share("recorder", RANK_TURNS_S / ROLLOUT_TURNS, "each rank", recorded),
        ("memory of rollouts", "", "each rank", said(memory, "B")),
        (
            "environments of 300 MB",
            f"{IN_FLIGHT:,}",
            f"{IN_FLIGHT // SLOTS:,} actors of {SLOTS} slots",
            f"{nodes:.0f} nodes of {NODE_BYTES / 1e9:.0f} GB",
        ),
    ]
    return table(PLAN_HEAD, lines)


def agents(measured: Measured) -> str:
    """Return what the same rollouts need as coding agents, with screenshots, or with two seats."""
    played = len(sessions()[AGENT])

    def rows(what: str, cited: Cited) -> tuple[str, str, str, str]:
        each = scaled(measured.median(cited), 1 / played)
        if each is None:
            return what, NOT_YET, NOT_YET, NOT_YET
        load = f"{IN_FLIGHT * each:,.0f}"
        return what, load, f"{RANK_ROLLOUTS * each:.0f} per rank", f"{each:.1f} rows per rollout"

    pictures = RANK_ROLLOUTS * ROLLOUT_TURNS
    files = scaled(picture_bytes(measured, FILES), pictures)
    tensors = scaled(picture_bytes(measured, TENSORS), ROLLOUT_TURNS)
    rank = "one address per rank"
    lines = [
        rows(f"rows of a batch, sessions of {AGENT}", ROWS),
        rows("the same with one row per request", REQUESTS),
        *(
            share(f"gateway, {cited.side}", RANK_TURNS_S, rank, measured.median(cited))
            for cited in DIALECTS
        ),
        share("a screenshot in each turn", RANK_TURNS_S, "each rank", measured.median(PICTURE)),
        ("files of the screenshots", f"{pictures:,.0f}", "each rank", said(files, "B")),
        ("tensors of one row", f"{ROLLOUT_TURNS}", "each rank, in a step", said(tensors, "B")),
        share("gateway, two seats", SEATS * RANK_TURNS_S, rank, measured.median(CALL)),
    ]
    return table(PLAN_HEAD, lines)


def share(part: str, asked_s: float, where: str, seconds: float | None) -> tuple[str, ...]:
    """Return the line of a part that is asked so often, and takes so many seconds each time."""
    used = NOT_YET if seconds is None else f"{asked_s * seconds:.2%} of a core"
    return part, f"{asked_s:,.1f} /s", where, used


def picture_bytes(measured: Measured, cited: Cited) -> float | None:
    """Return the bytes of one picture, from a figure of all files or of the tensors of a row."""
    rollouts = SIZES.image_rollouts if cited == FILES else 1
    return scaled(measured.median(cited), 1 / (rollouts * PICTURES))


def scaled(value: float | None, factor: float) -> float | None:
    """Return the product; None if the value was not measured."""
    return None if value is None else value * factor


def said(value: float | None, unit: Any) -> str:
    """Return a figure with its unit."""
    return NOT_YET if value is None else number(value, unit)


def rate(seconds: float) -> str:
    """Return the calls per second, in two digits, because machines differ by more than that."""
    return f"{float(f'{1 / seconds:.2g}'):,.0f}"


def table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written(page: str, found: Mapping[str, Any]) -> str:
    """Return the page with its tables.

    Raises:
        ValueError: the page does not have the markers of a table.
    """
    for name, text in tables(found).items():
        place = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"the page has no <!-- begin {name} --> and <!-- end {name} -->")
        page = place.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)
    return page


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    figures, target = map(Path, sys.argv[1:])
    told = json.loads(figures.read_text(encoding="utf-8"))
    target.write_text(written(target.read_text(encoding="utf-8"), told), encoding="utf-8")
