"""`abut export`: recorded rollouts as data for other trainers."""

import argparse
import sys
from pathlib import Path

from abut.cli.arguments import Commands
from abut.cli.show import add_records


def add_to(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser("export", help="make training data of recorded rollouts")
    add_records(parser)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--sft",
        nargs="?",
        const="ids",
        choices=("ids", "messages"),
        help="what SFTTrainer takes: ids and a mask of what was sampled (default), or messages",
    )
    kind.add_argument("--prompts", action="store_true", help="a dataset of prompts, each once")
    kind.add_argument("--records", action="store_true", help="the records, to hand on")
    parser.add_argument(
        "--without",
        default="",
        metavar="FIELDS",
        help="fields that are left out, such as columns,traceback: answers and paths are in them",
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="a new file: .jsonl or .parquet; default: stdout"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from abut.records.export import Kind, export, write_rows
    from abut.records.filter import parse_filter
    from abut.records.read import read_records

    records = filter(parse_filter(args.where), read_records(args.paths))
    kind: Kind = args.sft or ("prompts" if args.prompts else "records")
    rows = export(records, kind, without=filter(None, args.without.split(",")))
    count = write_rows(rows, args.output, sys.stdout)
    if args.output is not None:
        sys.stderr.write(f"abut export: {count} rows in {args.output}\n")
    return 0
