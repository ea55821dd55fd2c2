"""The `abut` command. Data goes to stdout, progress and errors to stderr."""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import abut
from abut.errors import AbutError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        sys.stderr.write(f"abut {args.command}: interrupted\n")
        return 130
    except (AbutError, ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"abut {args.command}: {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="abut", description="Multi-turn RL rollouts, exact to the token."
    )
    parser.add_argument("--version", action="version", version=f"abut {abut.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    demo = commands.add_parser(
        "demo",
        help="train a model on a multi-turn environment",
        description="Train a model with TRL's GRPOTrainer on a multi-turn environment. Without "
        "options a tiny model from random weights learns to copy, on the CPU, in a minute.",
    )
    demo.add_argument("--model", help="a causal language model, by name or folder")
    demo.add_argument("--env", metavar="MODULE:CLASS", help="an environment class of yours")
    demo.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    demo.add_argument("--records", type=Path, help="the JSONL file for the rollouts")
    demo.add_argument("--steps", type=_positive, help="optimizer steps")
    demo.add_argument("--seed", type=int, help="seed of weights, sampling and episodes")
    demo.add_argument("--learning-rate", type=float)
    demo.add_argument("--prompt", help="the prompt of every rollout")
    demo.add_argument("--batch", type=_positive, help="rollouts per step, a multiple of --group")
    demo.add_argument("--group", type=_positive, help="rollouts of one episode")
    demo.add_argument("--max-turns", type=_positive)
    demo.add_argument("--max-turn-tokens", type=_positive)
    demo.add_argument("--max-completion-tokens", type=_positive)
    demo.set_defaults(run=_demo)

    show = commands.add_parser("show", help="print one recorded rollout")
    show.add_argument("file", type=Path, help="a JSONL file of rollouts")
    show.add_argument("--index", type=int, help="which line, from 0; negative: from the end")
    show.add_argument("--id", dest="rollout_id", help="which rollout, by its id")
    show.add_argument("--tokenizer", help="name, folder or tokenizer.json; default: the record's")
    show.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    show.set_defaults(run=_show)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _demo(args: argparse.Namespace) -> int:
    began = time.monotonic()
    from abut.demo.recipe import DemoRecipe
    from abut.demo.run import run

    # What suits a tiny model from random weights would ruin a trained one.
    changes: dict[str, Any] = {}
    if args.model is not None:
        changes |= {"learning_rate": 1e-6, "entropy_coef": 0.0}
    if args.env is not None or args.model is not None:
        changes |= {"max_turn_tokens": 128, "max_completion_tokens": 2048}
    if args.env is not None:
        changes |= {"max_turns": 8}
    names = {field.name for field in dataclasses.fields(DemoRecipe)}
    changes |= {
        name: value for name, value in vars(args).items() if name in names and value is not None
    }
    recipe = dataclasses.replace(DemoRecipe(), **changes)
    records = args.records or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    if records.exists():
        raise ValueError(
            f"--records {records}: the file exists\nhint: choose another, or remove it"
        )
    out = sys.stderr if args.json else sys.stdout
    summary = run(recipe, model=args.model, env=args.env, records=records, out=out, began=began)
    out.write("\n" + "\n".join(summary.lines()) + "\n")
    if args.json:
        sys.stdout.write(json.dumps(summary.as_dict()) + "\n")
    return 0


def _show(args: argparse.Namespace) -> int:
    from abut.show import load_tokenizer, pick_record, render

    record = pick_record(args.file, args.index, args.rollout_id)
    tokenizer = load_tokenizer(args.tokenizer or record.get("tokenizer"))
    color = args.color == "always" or (args.color == "auto" and sys.stdout.isatty())
    for line in render(record, tokenizer, color=color):
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
