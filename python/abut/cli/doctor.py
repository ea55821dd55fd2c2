"""`abut doctor`: check what training will use, before it starts: this machine, a model, servers."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from abut.cli.command import Commands
from abut.errors import printable

if TYPE_CHECKING:
    from abut.nemo_gym.checks import Finding

_OF_GYM = ("dataset", "agent", "host", "tokenizer", "judge", "no_play")
"""The options that belong to `--nemo-gym`."""
_MARKS = {"ok": "ok  ", "warning": "warn", "error": "FAIL"}


def add_to(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "doctor",
        help="check the packages, GPUs, model and servers that training will use",
        description="Check the installed versions, known conflicts and GPUs. --model also checks a "
        "model's tokenizer, chat template and embedding, and --vllm a server. --nemo-gym checks a "
        "NeMo Gym instead: its head server, its agents, their model servers, and one rollout of "
        "each agent with a scripted policy. Each error says what to change, and the last line is "
        "the verdict. Exit status: 0 without errors, 1 with errors.",
    )
    parser.add_argument(
        "env",
        nargs="?",
        metavar="MODULE:NAME",
        help="an environment or agent, as for `abut play`: play one episode with a scripted reply "
        "and one with --model",
    )
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE.jsonl",
        help="rows with a column `prompt`; the first row is played",
    )
    parser.add_argument("--model", metavar="NAME", help="check this model: a name or a folder")
    parser.add_argument(
        "--vllm",
        metavar="URL",
        help="check this vLLM server; set VLLM_API_KEY if it needs a key",
    )
    parser.add_argument(
        "--nemo-gym", metavar="URL", help="check the NeMo Gym with this head, http://HOST:11000"
    )
    parser.add_argument(
        "--dataset",
        nargs="+",
        default=(),
        type=Path,
        metavar="FILE",
        help="the JSON lines that you will train on: check the agents they name, with their rows",
    )
    parser.add_argument("--agent", metavar="NAME", help="the agent of rows that do not name one")
    parser.add_argument(
        "--host",
        help="address to listen on during the rollouts (the host of Gym's policy_base_url)",
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="seconds for a rollout (300)"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="the model that you will train, a name or a folder: check that its chat template can "
        "write what the agents send",
    )
    parser.add_argument(
        "--judge",
        choices=["policy"],
        help='as in NemoGym(judge="policy"): the policy itself answers the requests of a judge',
    )
    parser.add_argument(
        "--no-play",
        action="store_true",
        help="do not play rollouts; for environments that wait for a whole group",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; returns the exit status."""
    counts = Counter[str]()
    for found in _of_gym(args) if args.nemo_gym else _of_machine(args):
        counts[found.level] += 1
        text = str(found).replace("\n", "\n     ")
        sys.stdout.write(f"{_MARKS[found.level]} {printable(text)}\n")
        sys.stdout.flush()
    verdict = "not ready to train" if counts["error"] else "no problems found"
    errors, warnings = (_counted(counts[level], level) for level in ("error", "warning"))
    sys.stdout.write(f"{verdict}: {errors}, {warnings}\n")
    return 1 if counts["error"] else 0


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _of_machine(args: argparse.Namespace) -> Iterator["Finding"]:
    from abut.cli.setup_checks import env_findings, model_findings, setup_findings, vllm_findings

    given = [name for name in _OF_GYM if getattr(args, name)]
    if given:
        option = given[0].replace("_", "-")
        raise ValueError(f"--{option} works only together with --nemo-gym URL")
    yield from setup_findings()
    if args.model is not None:
        yield from model_findings(args.model)
    if args.env is not None:
        if args.model is None:
            raise ValueError(
                f"{args.env} needs --model NAME, because the model's template writes the episode"
            )
        yield from env_findings(args.env, args.model, args.rows)
    if args.vllm is not None:
        yield from vllm_findings(args.vllm, api_key=os.environ.get("VLLM_API_KEY"))


def _of_gym(args: argparse.Namespace) -> Iterator["Finding"]:
    from abut.nemo_gym.doctor import doctor

    if args.model is not None:
        raise ValueError(
            "--model and --nemo-gym cannot be combined\n"
            "hint: pass --tokenizer NAME, or run abut doctor twice"
        )
    if args.vllm is not None:
        raise ValueError("--vllm and --nemo-gym cannot be combined\nhint: run abut doctor twice")
    if args.env is not None:
        raise ValueError(
            f"{args.env} and --nemo-gym cannot be combined\nhint: run abut doctor twice"
        )
    if not args.timeout > 0:
        raise ValueError(f"--timeout {args.timeout:g}: must be more than 0 seconds")
    yield from doctor(
        args.nemo_gym,
        args.dataset,
        agent=args.agent,
        host=args.host,
        timeout_s=args.timeout,
        tokenizer=args.tokenizer,
        judge=args.judge,
        play=not args.no_play,
    )
