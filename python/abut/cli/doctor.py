"""`abut doctor`: check the servers that training will use, before it starts."""

import argparse
import sys
from pathlib import Path

from abut.cli.command import Commands
from abut.errors import printable

_MARKS = {"ok": "ok  ", "warning": "warn", "error": "FAIL"}


def add_to(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "doctor",
        help="say what is wrong with the servers that training will use",
        description="Check a NeMo Gym: its head, its agents, their model servers, and one rollout "
        "of each agent with a scripted policy. Each error says what to change. Exit status: 0 no "
        "errors, 1 errors.",
    )
    parser.add_argument(
        "--nemo-gym", required=True, metavar="URL", help="the head, http://HOST:11000"
    )
    parser.add_argument(
        "--dataset",
        nargs="+",
        default=(),
        type=Path,
        metavar="FILE",
        help="JSON lines that you will train on: their agents are checked, with rows of theirs",
    )
    parser.add_argument("--agent", metavar="NAME", help="the agent of rows that name none")
    parser.add_argument(
        "--host",
        help="where to listen for the rollouts; default: the host of Gym's policy_base_url",
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="for a rollout (300 seconds)"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="the model that you will train, a name or a folder: its chat template must be able "
        "to write what agents ask",
    )
    parser.add_argument(
        "--judge",
        choices=["policy"],
        help='as in NemoGym(judge="policy"): the policy answers a judge that asks it',
    )
    parser.add_argument(
        "--no-play",
        action="store_true",
        help="play no rollouts: for environments that wait for a whole group",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; returns the exit status."""
    from abut.nemo_gym.doctor import doctor

    if not args.timeout > 0:
        raise ValueError(f"--timeout {args.timeout:g}: must be more than 0 seconds")
    levels = set()
    for found in doctor(
        args.nemo_gym,
        args.dataset,
        agent=args.agent,
        host=args.host,
        timeout_s=args.timeout,
        tokenizer=args.tokenizer,
        judge=args.judge,
        play=not args.no_play,
    ):
        levels.add(found.level)
        text = str(found).replace("\n", "\n     ")
        sys.stdout.write(f"{_MARKS[found.level]} {printable(text)}\n")
        sys.stdout.flush()
    return 1 if "error" in levels else 0
