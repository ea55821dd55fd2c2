"""`abut show`: print one recorded rollout."""

import argparse
import sys
from pathlib import Path

from abut.cli.arguments import Commands


def add_to(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser("show", help="print one recorded rollout")
    parser.add_argument("file", type=Path, help="a JSONL file of rollouts")
    parser.add_argument("--index", type=int, help="which line, from 0; negative: from the end")
    parser.add_argument("--id", dest="rollout_id", help="which rollout, by its id")
    parser.add_argument("--tokenizer", help="name, folder or tokenizer.json; default: the record's")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from abut.records.show import load_tokenizer, pick_record, render

    record = pick_record(args.file, args.index, args.rollout_id)
    tokenizer = load_tokenizer(args.tokenizer or record.get("tokenizer"))
    color = args.color == "always" or (args.color == "auto" and sys.stdout.isatty())
    for line in render(record, tokenizer, color=color):
        sys.stdout.write(line + "\n")
    return 0
