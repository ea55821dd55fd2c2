"""`abut check`: say which seams of a tokenizer and its chat template are exact."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from abut.cli.command import Commands, forget_stdout, positive
from abut.errors import AbutError, printable, text_of


def add_to(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "check",
        help="check whether a tokenizer and its chat template can be trained exactly",
        description="Build the seams that training builds (the places where text is appended to "
        "tokens) and print which are exact. Exit status: 0 if all are exact, 1 if one is not or "
        "abut refuses the template, 2 if nothing could be checked.",
    )
    parser.add_argument("model", metavar="MODEL", help="a name, a folder or a tokenizer.json")
    parser.add_argument(
        "--template", type=Path, help="a Jinja file instead of the model's template"
    )
    parser.add_argument(
        "--template-kwargs",
        type=_json_object,
        metavar="JSON",
        help="variables for the template, such as '{\"enable_thinking\": false}'",
    )
    parser.add_argument(
        "--roles",
        type=_roles,
        default=("user", "tool"),
        metavar="ROLES",
        help="roles of your environment's messages: user, tool or user,tool (both). If the "
        "template accepts a role, abut must be able to append its messages",
    )
    parser.add_argument(
        "--fuzz",
        type=positive,
        default=0,
        metavar="N",
        help="compare N random conversations with the template's full render",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of --fuzz (0)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from abut.audit.printed import lines
    from abut.audit.verdict import audit

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
        sys.stderr.write(f"abut check: {printable(str(error))}\n")
        return 2
    except Exception as error:  # a traceback would exit with 1, which is a verdict
        sys.stderr.write(f"abut check: {printable(text_of(error))}\n")
        return 2
    status = 0 if found.exact else 1
    page = [json.dumps(found.as_dict())] if args.json else lines(found)
    try:
        sys.stdout.writelines(f"{printable(line)}\n" for line in page)
        sys.stdout.flush()
    except BrokenPipeError:  # after `| head`, the exit status still tells the verdict
        forget_stdout()
    return status


def _roles(text: str) -> tuple[str, ...]:
    roles = tuple(text.split(","))
    if not {*roles} <= {"user", "tool"}:
        raise argparse.ArgumentTypeError(f"{text!r}: expected user, tool or user,tool")
    return roles


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value
