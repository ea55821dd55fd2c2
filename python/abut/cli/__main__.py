"""The `abut` command. Data goes to stdout, progress and errors to stderr."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from abut._native import __version__
from abut.cli import check, demo, doctor, evaluate, gateway, records
from abut.cli.command import forget_stdout
from abut.errors import AbutError, printable
from abut.removed import removal


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = sys.argv[1:] if argv is None else argv
    if given and (message := removal(f"abut {given[0]}")):
        sys.stderr.write(f"{message}\n")
        return 2
    args = _parser().parse_args(argv)
    if argv is None:
        _quiet_transformers(torch_is_needed=args.command != "check")
    try:
        status = int(args.run(args) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        forget_stdout()
        return 0
    except KeyboardInterrupt:
        sys.stderr.write(f"abut {args.command}: interrupted\n")
        return 130
    except (AbutError, ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"abut {args.command}: {printable(str(error))}\n")
        return 1


def _quiet_transformers(*, torch_is_needed: bool) -> None:
    """Keep transformers from importing torch for nothing, and from warning that it is missing.

    Reading a tokenizer takes a fraction of the time that torch takes to load. A command that does
    need torch has an error of its own.
    """
    if not torch_is_needed:
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    if find_spec("torch") is None:
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="abut", description="Multi-turn RL rollouts, exact to the token."
    )
    parser.add_argument("--version", action="version", version=f"abut {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (demo, evaluate, records, check, doctor, gateway):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
