"""Compare the benchmarks of two checkouts: `python scripts/compare_benchmarks.py OLD NEW`.

Each checkout needs its own built `.venv`. Each round runs old, new, and old again, so that slow
changes of the machine affect both. The two runs of the old checkout show the spread of equal code;
a case is slower only if it exceeds that spread. Cases are matched by name.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

SIDE = "abut"

Case: TypeAlias = tuple[str, str, str]
"""A row, a case and a unit."""


class Compared(NamedTuple):
    """One case: how long the new checkout takes, as a multiple of the old one."""

    case: Case
    old: float
    ratio: float
    spread: float
    """The largest ratio of two runs of the old checkout in one round."""

    @property
    def is_slower(self) -> bool:
        """Return whether the ratio is past 1.10 and past the spread."""
        return self.ratio > max(1.10, self.spread)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks and print a table; return 1 if a case is slower."""
    parser = argparse.ArgumentParser(description="Compare the benchmarks of two checkouts.")
    parser.add_argument("old", type=Path, help="checkout with a built .venv")
    parser.add_argument("new", type=Path, help="checkout with a built .venv")
    parser.add_argument(
        "--rows", default="", help="rows, as for `python -m benchmarks` (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    rounds = []
    for number in range(args.rounds):
        runs = [figures(run(folder, args.rows)) for folder in (args.old, args.new, args.old)]
        rounds.append((runs[0], runs[1], runs[2]))
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    compared = compare(rounds)
    for one in compared:
        times = f"{one.ratio:6.2f} {one.spread:6.2f}{'  slower' if one.is_slower else ''}"
        row, case, unit = one.case
        print(f"{row:15} {case[:50]:50} {one.old:10.4g} {unit:5} {times}")
    return int(any(one.is_slower for one in compared))


def run(folder: Path, rows: str) -> Mapping[str, Any]:
    """Run the benchmarks of a checkout, and return what they write as JSON."""
    python = folder.resolve() / ".venv" / "bin" / "python"
    # Before 0.2 the benchmarks were part of the package.
    start = (
        ["-m", "benchmarks"] if (folder / "benchmarks").is_dir() else ["-m", "abut.cli", "bench"]
    )
    with tempfile.TemporaryDirectory() as into:
        path = Path(into) / "figures.json"
        command = [str(python), *start, "--here", "--json", str(path)]
        command += ["--rows", rows] if rows else []
        environment = os.environ | {"PYTHONPATH": str(folder.resolve() / "python")}
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        figures: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
        return figures


def figures(written: Mapping[str, Any]) -> dict[Case, float]:
    """Return the median of each case of abut's side that took time or memory."""
    return {
        (row["name"], figure["case"], figure["unit"]): figure["median"]
        for row in written["rows"]
        for figure in row["figures"]
        if figure["side"] == SIDE and figure["median"]
    }


def compare(
    rounds: Iterable[tuple[Mapping[Case, float], Mapping[Case, float], Mapping[Case, float]]],
) -> list[Compared]:
    """Compare the runs of each round: old, new, old again."""
    rounds = list(rounds)
    first = rounds[0][0]
    compared = []
    for case in first:
        runs = [
            (old[case], new[case], again[case])
            for old, new, again in rounds
            if case in old and case in new and case in again
        ]
        if runs:
            ratios = [new / median([old, again]) for old, new, again in runs]
            spread = max(max(old, again) / min(old, again) for old, _, again in runs)
            compared.append(
                Compared(case, median(old for old, _, _ in runs), median(ratios), spread)
            )
    return compared


if __name__ == "__main__":
    sys.exit(main())
