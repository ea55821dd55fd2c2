"""`python -m benchmarks`: measure abut and the packages that it is compared with."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from abut import AbutError
from benchmarks.command import Plan, run, tokenizer_folder
from benchmarks.peers import default_folder
from benchmarks.rows import ROWS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks that the command line names, and return the exit status."""
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
        description="Measure abut and comparable packages (peers) on one core. Times are compared "
        "only if the results are equal. The peers are installed in a separate virtual environment. "
        "Exit status: 0 if all rows were measured; 1 if results differ or a row could not be "
        "measured, and with --strict also if a requirement is missed or a peer is missing.",
    )
    parser.add_argument(
        "--rows",
        type=_rows,
        help=f"rows to measure, separated by commas (default: all): {', '.join(ROWS)}",
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="folder with tokenizer.json and a chat template (default: $ABUT_TOKENIZERS/qwen3)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--peers-env",
        type=Path,
        metavar="DIR",
        help="virtual environment of the peers, created if missing (default: in the cache folder)",
    )
    where.add_argument(
        "--here", action="store_true", help="install nothing: use the packages of this Python"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small trial run; its numbers are meaningless"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 if a requirement is missed or a peer is missing",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE.md", help="write the page, and its chart next to it"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measured values")
    return parser


def _rows(text: str) -> tuple[str, ...]:
    rows = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in rows if name not in ROWS]:
        raise argparse.ArgumentTypeError(f"unknown row {unknown[0]!r}: use {', '.join(ROWS)}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
