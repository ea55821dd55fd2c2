"""`abut demo`: train a model on a multi-turn environment."""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from abut.cli.command import Commands, positive


def add_to(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "demo",
        help="train a model on a multi-turn environment",
        description="Train a model with TRL's GRPOTrainer on a multi-turn environment. Without "
        "options, a tiny model with random weights learns to copy words on the CPU in a minute.",
    )
    parser.add_argument("--model", help="a causal language model, by name or folder")
    parser.add_argument("--env", metavar="MODULE:CLASS", help="your environment class")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    parser.add_argument(
        "--records", type=Path, metavar="FILE.jsonl", help="write the rollouts to this file"
    )
    parser.add_argument(
        "--view", action="store_true", help="open a page that shows each token in the browser"
    )
    parser.add_argument("--steps", type=positive, help="optimizer steps")
    parser.add_argument("--seed", type=int, help="seed of the weights, sampling and episodes")
    parser.add_argument("--learning-rate", type=float, help="learning rate of the optimizer")
    parser.add_argument("--prompt", help="the prompt of every rollout")
    parser.add_argument("--batch", type=positive, help="rollouts per step, a multiple of --group")
    parser.add_argument("--group", type=positive, help="rollouts per episode")
    parser.add_argument("--max-turns", type=positive, help="most turns of a rollout")
    parser.add_argument("--max-turn-tokens", type=positive, help="most tokens of a turn")
    parser.add_argument(
        "--max-completion-tokens", type=positive, help="most tokens after a rollout's prompt"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    began = time.monotonic()
    from abut.demo.model import DemoRecipe
    from abut.demo.run import run

    # The recipe of a tiny model with random weights would ruin a trained one.
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
            f"--records {records}: the file exists\nhint: name another file, or remove this one"
        )
    out = sys.stderr if args.json else sys.stdout
    summary = run(recipe, model=args.model, env=args.env, records=records, out=out, began=began)
    out.write("\n" + "\n".join(summary.lines()) + "\n")
    out.write(f"page            {_page(records, shown=args.view)}\n")
    if args.json:
        sys.stdout.write(json.dumps(summary.as_dict()) + "\n")
    return 0


def _page(records: Path, *, shown: bool) -> str:
    """Write the page that shows every token, open it if asked to, and return how to reach it."""
    from abut.cli.records import open_page, page_path
    from abut.records.viewer.page import view

    path = view(records).save(page_path(records))
    if shown:
        open_page(path)
        return str(path)
    return f"{path}  (open this file in a browser, or run abut demo with --view)"
