"""`python -m benchmarks`: measure abut beside what people use today."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from abut import AbutError
from benchmarks.command import Plan, run, tokenizer_folder
from benchmarks.peers import default_folder
from benchmarks.rows import ROWS


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line says; returns the exit status."""
    args = _parser().parse_args(argv)

    def out(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")

    try:
        plan = Plan(
            rows=args.rows or tuple(ROWS),
            tokenizer=tokenizer_folder(args.tokenizer),
            peers_env=None if args.here else args.peers_env or default_folder(),
            quick=args.quick,
            strict=args.strict,
            write=args.write,
            json=args.json,
        )
        return run(plan, out, say)
    except KeyboardInterrupt:
        say("benchmarks: interrupted")
        return 130
    except (AbutError, ValueError, TypeError, OSError) as error:
        say(f"benchmarks: {error}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure abut beside what people use today, on one core, and compare the "
        "results of all before their times. The peers get an environment of their own. Exit "
        "status: 0 measured, 1 results differ or a row could not be measured; with --strict also "
        "where a requirement is missed or a peer missing.",
    )
    parser.add_argument(
        "--rows",
        type=_rows,
        help=f"which rows, with commas between them (all): {', '.join(ROWS)}",
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="with tokenizer.json and chat template (the folder qwen3 in $ABUT_TOKENIZERS)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--peers-env",
        type=Path,
        metavar="DIR",
        help="the peers' virtual environment, made where it is not there (in the cache folder)",
    )
    where.add_argument("--here", action="store_true", help="install nothing: use what is here")
    parser.add_argument(
        "--quick", action="store_true", help="a small trial; its figures mean nothing"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 where a requirement is missed or a peer missing",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE.md", help="the page, its picture beside it"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="all values of all runs")
    return parser


def _rows(text: str) -> tuple[str, ...]:
    rows = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in rows if name not in ROWS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(ROWS)}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
