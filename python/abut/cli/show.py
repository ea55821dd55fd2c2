"""`abut show`: print recorded rollouts: a list, a summary, or one of them."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from abut.cli.arguments import Commands


def add_to(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser("show", help="print recorded rollouts")
    add_records(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="a line for each rollout")
    what.add_argument("--steps", action="store_true", help="a line for each step")
    what.add_argument("--index", type=int, help="which one, from 0; negative: from the end (-1)")
    what.add_argument("--id", dest="rollout_id", help="which one, by its id")
    parser.add_argument("--tokenizer", help="name, folder or tokenizer.json; default: the record's")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.set_defaults(run=run)


def add_records(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which records are meant."""
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="a JSONL file of rollouts, a folder of Parquet files, or several",
    )
    parser.add_argument(
        "--where",
        default="",
        metavar="CONDITIONS",
        help="only those, such as 'reward<0.5 step:100 error:timeout turns>3'",
    )


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    for line in _lines(args):
        sys.stdout.write(line + "\n")
    return 0


def _lines(args: argparse.Namespace) -> Iterator[str]:
    from abut.errors import AbutError, printable
    from abut.records.filter import parse_filter
    from abut.records.read import read_records
    from abut.records.show import list_records, load_tokenizer, pick_record, render, summarize

    records = filter(parse_filter(args.where), read_records(args.paths))
    picked = args.index is not None or args.rollout_id is not None
    if args.steps:
        yield from summarize(records)
        return
    if args.list or (args.where and not picked):
        yield from list_records(records)
        return
    record = pick_record(records, args.index, args.rollout_id)
    tokenizer, source = None, args.tokenizer or record["tokenizer"]
    if source:
        try:
            tokenizer = load_tokenizer(source)
        except (AbutError, OSError, ValueError) as error:
            if args.tokenizer:
                raise
            sys.stderr.write(printable(f"abut show: without its tokenizer: {error}\n"))
    color = args.color == "always" or (args.color == "auto" and sys.stdout.isatty())
    yield from render(record, tokenizer, color=color)
