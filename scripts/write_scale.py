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

from benchmarks.table import number

NOT_YET = "not measured yet"
"""The cell of a figure whose row is not in the file yet."""

AT_ONCE, ALONE = "128 at once", "one by itself"
WORKS = "32 with 5 ms of work per step"
OURS, ALL = "CPU time per turn, trainer's process", "CPU time per turn, all processes"
CROWD = "10,240 rollouts of 20 turns, median delay 0.5 s"
# The number of rollouts of the row `records`.
RECORDED = 64


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
    return {"limits": limits(measured), "pools": pools(measured), "plan": plan(measured)}


def limits(measured: Measured) -> str:
    """Return the table of what one process can do."""

    def time_of(cited: Cited) -> tuple[str, float | None]:
        return said(value := measured.median(cited), "s"), value

    def line(part: str, cited: Cited, what: str) -> tuple[str, ...]:
        text, value = time_of(cited)
        return part, text, f"{rate(value)} {what}" if value else NOT_YET, f"`{cited.row}`"

    recorded, size = measured.median(RECORDS), measured.median(SIZE)
    one = None if recorded is None else recorded / RECORDED
    lines = [
        line("engine, turns without delays", ENGINE, "turns/s"),
        line("engine, turns with delays", SPREAD, "turns/s"),
        line("gateway, without sampling, after 30,000 tokens", CALL, "calls/s"),
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
            said(None if size is None else size / RECORDED, "B"),
            "",
            "`records`",
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


def plan(measured: Measured) -> str:
    """Return the load of a thousand GPUs on each part, and the share of a core that it needs."""
    in_flight = ENGINES * IN_FLIGHT_PER_ENGINE
    turns_s = in_flight / (TURN_TOKENS / TOKENS_PER_S + STEP_S)
    per_rank = turns_s / TRAINERS
    lines: list[tuple[str, str, str, str]] = [
        ("rollouts in flight", f"{in_flight:,}", f"{in_flight / TRAINERS:.0f} per rank", ""),
        ("turns", f"{turns_s:,.0f} /s", f"{per_rank:.1f} /s per rank", ""),
    ]

    def share(part: str, asked_s: float, where: str, cited: Cited, divided: int = 1) -> None:
        value = measured.median(cited)
        used = NOT_YET if value is None else f"{asked_s * value / divided:.2%} of a core"
        lines.append((part, f"{asked_s:,.1f} /s", where, used))

    share("engine and threads", per_rank, "each rank", SPREAD)
    share("pool on Ray", per_rank, "each rank", of_pool(f"{AT_ONCE}, {OURS}", "RayPool"))
    share("gateway", per_rank, "one address per rank", CALL)
    share("gateway", turns_s, "one address for all ranks", CALL)
    share("recorder", per_rank / ROLLOUT_TURNS, "each rank", RECORDS, RECORDED)
    memory = measured.median(MEMORY)
    held = NOT_YET if memory is None else f"{in_flight / TRAINERS * memory / 1e6:,.0f} MB"
    lines.append(("memory of rollouts", "", "each rank", held))
    nodes = in_flight * ENV_BYTES / NODE_BYTES
    lines.append(
        (
            "environments of 300 MB",
            f"{in_flight:,}",
            f"{in_flight // SLOTS:,} actors of {SLOTS} slots",
            f"{nodes:.0f} nodes of {NODE_BYTES / 1e9:.0f} GB",
        )
    )
    return table(("part", "load", "where", "needs"), lines)


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
