"""The `abut` command. Data goes to stdout, progress and errors to stderr."""

import argparse
import dataclasses
import json
import os
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
    if argv is None and args.command == "check":
        _leave_torch_out()
    try:
        status = int(args.run(args) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _forget_stdout()
        return 0
    except KeyboardInterrupt:
        sys.stderr.write(f"abut {args.command}: interrupted\n")
        return 130
    except (AbutError, ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"abut {args.command}: {error}\n")
        return 1


def _forget_stdout() -> None:
    """Nobody reads it any more: what is left in its buffer must not fail when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_torch_out() -> None:
    """Keep transformers from importing torch in this process, for commands that need none.

    A tokenizer is read in a fraction of the time that torch takes to load.
    """
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch is missing


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

    check = commands.add_parser(
        "check",
        help="say which seams of a tokenizer and its chat template are exact",
        description="Make the seams that training makes and say which are exact. Exit status: 0 "
        "exact, 1 not exact or the template is refused, 2 nothing could be checked.",
    )
    check.add_argument("model", metavar="MODEL", help="a name, a folder or a tokenizer.json")
    check.add_argument("--template", type=Path, help="a Jinja file instead of the model's template")
    check.add_argument(
        "--template-kwargs",
        type=_json_object,
        metavar="JSON",
        help="variables for the template, such as '{\"enable_thinking\": false}'",
    )
    check.add_argument(
        "--roles",
        type=_roles,
        default=("user", "tool"),
        metavar="ROLES",
        help="what your environment speaks as: user, tool or user,tool (both); what the template "
        "takes must be appendable",
    )
    check.add_argument(
        "--fuzz",
        type=_positive,
        default=0,
        metavar="N",
        help="compare N random conversations with the template's full render",
    )
    check.add_argument("--seed", type=int, default=0, help="of the fuzz (0)")
    check.add_argument("--json", action="store_true", help="print everything as one JSON object")
    check.set_defaults(run=_check)

    bench = commands.add_parser(
        "bench",
        help="measure abut beside what people use today",
        description="Measure abut beside what people use today, on one core, and compare the "
        "results of all before their times. The peers get an environment of their own. Exit "
        "status: 0 measured, 1 results differ or a row could not be measured; with --strict also "
        "where a requirement is missed or a peer missing.",
    )
    bench.add_argument(
        "--rows",
        type=_bench_rows,
        help="which rows, with commas between them (all): encode, append, open_text, seam, "
        "rollouts, pace, collate, stitch, engine_reply, load, memory",
    )
    bench.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="with tokenizer.json and chat template (the folder qwen3 in $ABUT_TOKENIZERS)",
    )
    where = bench.add_mutually_exclusive_group()
    where.add_argument(
        "--peers-env",
        type=Path,
        metavar="DIR",
        help="the peers' virtual environment, made where it is not there (in the cache folder)",
    )
    where.add_argument("--here", action="store_true", help="install nothing: use what is here")
    bench.add_argument(
        "--quick", action="store_true", help="a small trial; its figures mean nothing"
    )
    bench.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 where a requirement is missed or a peer missing",
    )
    bench.add_argument(
        "--write", type=Path, metavar="FILE.md", help="the page, its picture beside it"
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="all values of all runs")
    bench.set_defaults(run=_bench)

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


def _roles(text: str) -> tuple[str, ...]:
    roles = tuple(text.split(","))
    if not {*roles} <= {"user", "tool"}:
        raise argparse.ArgumentTypeError(f"{text!r} is none of user, tool and user,tool")
    return roles


def _bench_rows(text: str) -> tuple[str, ...]:
    from abut.bench.rows import ROWS

    rows = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in rows if name not in ROWS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(ROWS)}")
    return rows


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value


def _check(args: argparse.Namespace) -> int:
    from abut.audit import audit
    from abut.audit_table import lines

    try:
        found = audit(
            args.model,
            template=None if args.template is None else args.template.read_text(encoding="utf-8"),
            template_kwargs=args.template_kwargs,
            roles=args.roles,
            fuzz=args.fuzz,
            seed=args.seed,
        )
    except (AbutError, ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"abut check: {error}\n")
        return 2
    except Exception as error:  # a traceback would exit with 1, which is a verdict
        sys.stderr.write(f"abut check: {type(error).__name__}: {error}\n")
        return 2
    status = 0 if found.exact else 1
    page = [json.dumps(found.as_dict())] if args.json else lines(found)
    try:
        sys.stdout.writelines(f"{line}\n" for line in page)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads the first lines only still gets the verdict
        _forget_stdout()
    return status


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


def _bench(args: argparse.Namespace) -> int:
    from abut.bench.command import Order, run, tokenizer_folder
    from abut.bench.peers import default_folder
    from abut.bench.rows import ROWS

    order = Order(
        rows=args.rows or tuple(ROWS),
        tokenizer=tokenizer_folder(args.tokenizer),
        peers_env=None if args.here else args.peers_env or default_folder(),
        quick=args.quick,
        strict=args.strict,
        write=args.write,
        json=args.json,
    )

    def out(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")

    return run(order, out, say)


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
