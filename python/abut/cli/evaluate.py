"""`abut play` and `abut eval`: watch rollouts without a trainer, or evaluate a policy."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from abut.cli.command import Commands, positive
from abut.errors import printable

if TYPE_CHECKING:
    from abut.evaluation import Evaluation
    from abut.rollout.config import RolloutConfig
    from abut.rollout.rollout import Rollout
    from abut.samplers.settings import SamplingSettings

_A_DAY_S = 86_400.0


def add_to(commands: Commands) -> None:
    """Add the commands and their options."""
    parser = commands.add_parser(
        "play",
        help="play an environment or agent and print the conversation as it happens",
        description="Play rollouts one after another and print each message. On a terminal you "
        "type the policy's turns yourself, unless you name a policy.",
    )
    _add_env(parser)
    parser.add_argument("-n", type=positive, default=1, help="play the first N rows (1)")
    parser.add_argument("--prompt", default="", help="the prompt if there are no rows")
    _add_policy(parser, several=False)
    parser.add_argument("--by-hand", action="store_true", help="type the policy's turns yourself")
    parser.set_defaults(run=play)
    parser = commands.add_parser(
        "eval",
        help="play each row of a dataset several times and report rewards and pass@k",
        description="Play each row K times and print the mean reward with its standard error, "
        "pass@1 to pass@K, and the failures. Ctrl-C prints the results so far.",
    )
    _add_env(parser)
    parser.add_argument("-n", type=positive, help="play only the first N rows (all)")
    _add_policy(parser, several=True)
    parser.add_argument("-k", type=positive, default=1, help="rollouts per row (1)")
    parser.add_argument(
        "--success", type=float, default=1.0, help="lowest reward that counts as a success (1)"
    )
    parser.add_argument(
        "--failed",
        choices=("leave-out", "zero"),
        default="leave-out",
        help="leave failed rollouts out of the mean, or count them as reward 0 (leave-out)",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="PATH",
        help="save the rollouts in a folder (Parquet) or a .jsonl file; with several models, each "
        "model's name is added to PATH",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="skip the rollouts that --record already has; failed ones are played again",
    )
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="compare with these records, row by row"
    )
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.set_defaults(run=evaluate)


def _add_env(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "env",
        metavar="MODULE:NAME",
        help="an environment class or factory, an agent, a tool_env, or a dict of these",
    )
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE.jsonl",
        help="rows with a `prompt` column (default: the environment's own dataset, if it has one)",
    )
    parser.add_argument("--max-turns", type=positive, metavar="N", help="most turns of a rollout")
    parser.add_argument(
        "--max-turn-tokens", type=positive, metavar="N", help="most tokens of a turn"
    )
    parser.add_argument(
        "--max-completion-tokens",
        type=positive,
        metavar="N",
        help="most tokens after a rollout's prompt",
    )


def _add_policy(parser: argparse.ArgumentParser, *, several: bool) -> None:
    parser.add_argument(
        "--model",
        action="append" if several else "store",
        metavar="NAME",
        help="a model to load in this process" + ("; may be repeated" if several else ""),
    )
    parser.add_argument(
        "--vllm", nargs="+", metavar="URL", help="vLLM servers that serve one model"
    )
    parser.add_argument("--tokenizer", metavar="NAME", help="the tokenizer of the --vllm model")
    parser.add_argument("--chat", metavar="URL", help="an OpenAI-compatible chat API; ends in /v1")
    parser.add_argument("--chat-model", metavar="NAME", help="the name of the model at --chat")
    parser.add_argument(
        "--api-key-env",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="the environment variable with the API key (OPENAI_API_KEY)",
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="sampling temperature (1)"
    )


class NamedPolicy(NamedTuple):
    """A policy named on the command line.

    Attributes:
        name: shown in tables and added to file names.
        load: returns `sampler` and the arguments of `abut.play` that go with it. It is called when
            the policy's turn comes, so only one of several models is in memory.
    """

    name: str
    load: Callable[[], Mapping[str, Any]]


def play(args: argparse.Namespace) -> int:
    """Play the rollouts and print them; return the exit status."""
    from abut.demo.run import load_env
    from abut.envs.source import task_envs
    from abut.evaluation.watched import ByHand, Shown
    from abut.evaluation.without_trainer import Plan

    out = sys.stdout
    policies = list(_policies(args))
    if args.by_hand or (not policies and sys.stdin.isatty()):
        policies = [NamedPolicy("you", lambda: {"sampler": ByHand(out)})]
    (policy,) = _one_kind(policies, args)
    env = load_env(args.env)
    rows = _rows(args, env) or [{"prompt": args.prompt}] * args.n
    # A person thinks for longer than a model does.
    limits = {"turn_timeout_s": _A_DAY_S, "rollout_timeout_s": _A_DAY_S}
    config = _config(args, **limits if policy.name == "you" else {})
    shown = Shown(out, typed=policy.name == "you" and sys.stdin.isatty())
    plan = Plan(
        env,
        rows,
        config=config,
        watch=lambda request: shown.show(request.messages()),
        **policy.load(),
    )
    for task in plan.tasks:
        (rollout,) = plan.run([task])
        made = task_envs(task)
        spoken = None if made is None else made.spoken
        shown.show(rollout.messages if spoken is None else spoken(rollout.messages))
        out.write(f"---- {_ended(rollout)}\n")
    return 0


def _ended(rollout: "Rollout") -> str:
    if rollout.failed:
        return printable(f"failed: {rollout.error}")
    reward = "no score" if rollout.reward is None else f"reward {rollout.reward:g}"
    return f"{reward}, {len(rollout.turns)} turns, ended by {rollout.stop_reason}"


def evaluate(args: argparse.Namespace) -> int:
    """Evaluate the policies and print the results; return the exit status, 130 after Ctrl-C."""
    from abut.demo.run import load_env
    from abut.evaluation.recorded import compare, row_means
    from abut.records.read import read_records

    policies = _one_kind(list(_policies(args)), args)
    if args.resume and args.record is None:
        raise ValueError(
            "--resume needs --record PATH, which has the rollouts that were already played"
        )
    env = load_env(args.env)
    rows = _rows(args, env)
    if not rows:
        raise ValueError(f"{args.env} does not have a dataset\nhint: pass --rows FILE.jsonl")
    before = None if args.against is None else row_means(read_records(args.against))
    results: dict[str, Any] = {}
    interrupted = False
    for policy in policies:
        path = _record_path(args.record, policy.name if len(policies) > 1 else None)
        evaluation, interrupted, means = _evaluated(args, env, rows, policy, path)
        results[policy.name] = evaluation.to_dict()
        difference = None
        if before is not None:
            difference = compare(means, before)
            interval = list(difference.interval)
            results[policy.name] |= {"difference": difference.difference, "interval": interval}
        if not args.json:
            heading = f"{policy.name}\n" if len(policies) > 1 else ""
            sys.stdout.write(printable(f"{heading}{evaluation}\n"))
            if difference is not None:
                sys.stdout.write(f"against     {args.against}: {difference}\n")
            sys.stdout.write("\n" * (len(policies) > 1))
        if interrupted:
            break
    if len(results) > 1 and not args.json:
        sys.stdout.write(_table(results))
    if args.json:
        whole = results if len(policies) > 1 else next(iter(results.values()))
        sys.stdout.write(json.dumps(whole, allow_nan=False) + "\n")
    return 130 if interrupted else 0


def _evaluated(
    args: argparse.Namespace,
    env: Any,
    rows: Sequence[Mapping[str, Any]],
    policy: NamedPolicy,
    path: Path | None,
) -> tuple["Evaluation", bool, dict[str, float]]:
    """Return the evaluation of a policy, whether it was interrupted, and the means of its rows."""
    from abut.evaluation.recorded import resumed, row_key
    from abut.evaluation.summary import Evaluation
    from abut.evaluation.without_trainer import Plan, PlayInterrupted
    from abut.records.read import read_records

    is_there = path is not None and path.exists()
    if is_there and not args.resume:
        raise ValueError(
            f"--record {path} already exists\nhint: pass --resume, or name another path"
        )
    plan = Plan(env, rows, k=args.k, config=_config(args), recorder=path, **policy.load())
    missing: Sequence[Any] = plan.tasks
    known: list[Rollout] = []
    if is_there:
        missing, known = resumed(plan.tasks, read_records(path))  # type: ignore[arg-type]
        sys.stderr.write(
            f"abut eval: {len(known)} rollouts are already recorded, {len(missing)} to play\n"
        )
    interrupted = False
    try:
        played: Sequence[Rollout] = plan.run(missing)
    except PlayInterrupted as interrupt:
        played, interrupted = interrupt.rollouts, True
        sys.stderr.write(f"abut eval: interrupted: {interrupt}\n")
    rollouts = sorted([*known, *played], key=lambda rollout: rollout.index)
    failed = args.failed.replace("-", "_")
    one = Evaluation.of(rollouts, plan.rows, args.k, success=args.success, failed=failed)
    keys = [row_key(task.columns) for task in plan.tasks[:: args.k]]
    means = zip(keys, one.row_means.tolist(), strict=True)
    return one, interrupted, {key: mean for key, mean in means if not isnan(mean)}


def _table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of several models' results, one line per model."""
    wide = max(map(len, results))
    lines = [f"{'':{wide}}  {'reward':>8} {'± error':>8} {'pass@1':>8} {'failed':>7} {'tokens':>8}"]
    for name, values in results.items():
        shown = [values["mean_reward"], values["standard_error"], values["pass_at"].get("1")]
        cells = " ".join(f"{'-' if value is None else format(value, '.4g'):>8}" for value in shown)
        tokens = values["mean_tokens"]
        lines.append(
            f"{name:{wide}}  {cells} {values['failed']:>7} "
            f"{'-' if tokens is None else format(tokens, '.4g'):>8}"
        )
    return "\n".join(lines) + "\n"


def _record_path(path: Path | None, model: str | None) -> Path | None:
    """Return the path of a model's records; its name is added if there are several models."""
    if path is None or model is None:
        return path
    return path.with_name(f"{path.stem}-{re.sub(r'[^A-Za-z0-9.]+', '-', model)}{path.suffix}")


def _rows(args: argparse.Namespace, env: Any) -> Sequence[Mapping[str, Any]]:
    """Return the rows of the file, or of the environment's own dataset; empty if it has none."""
    from abut.evaluation.without_trainer import read_rows

    if args.rows is None:
        return list(env.dataset(args.n)) if callable(getattr(env, "dataset", None)) else []
    return list(read_rows(args.rows))[: args.n]


def _config(args: argparse.Namespace, **more: Any) -> "RolloutConfig":
    from abut.rollout.config import RolloutConfig

    names = ("max_turns", "max_turn_tokens", "max_completion_tokens")
    return RolloutConfig(**{name: getattr(args, name) for name in names}, **more)


def _one_kind(policies: Sequence[NamedPolicy], args: argparse.Namespace) -> Sequence[NamedPolicy]:
    """Refuse a command line that names no policy, or policies of several kinds."""
    kinds = ["--model"] * bool(args.model) + ["--vllm"] * bool(args.vllm)
    kinds += ["--chat"] * bool(args.chat) + ["--by-hand"] * bool(getattr(args, "by_hand", False))
    if len(kinds) > 1:
        raise ValueError(f"{' and '.join(kinds)} cannot be combined\nhint: name one policy")
    if not policies:
        raise ValueError(
            "no policy to play\n"
            "hint: pass --model NAME, --vllm URL --tokenizer NAME, or --chat URL --chat-model NAME"
        )
    return policies


def _policies(args: argparse.Namespace) -> Iterator[NamedPolicy]:
    """Yield the policies that the command line names, without loading any model."""
    from abut.samplers.hosted import ChatSampler
    from abut.samplers.settings import SamplingSettings

    settings = SamplingSettings(temperature=args.temperature)
    models = args.model if isinstance(args.model, list) else [args.model] * bool(args.model)
    for name in models:
        yield NamedPolicy(name, partial(load_policy, name, settings))
    if args.vllm:
        if args.tokenizer is None:
            raise ValueError(
                "--vllm needs --tokenizer\nhint: pass --tokenizer NAME of the served model"
            )
        given = {"sampler": args.vllm, "tokenizer": args.tokenizer, "sampling": settings}
        yield NamedPolicy(args.tokenizer, lambda: given)
    if args.chat:
        if args.chat_model is None:
            raise ValueError(
                "--chat needs --chat-model\nhint: pass --chat-model NAME of the model to use"
            )
        key = os.environ.get(args.api_key_env)
        sampler = ChatSampler(args.chat, args.chat_model, api_key=key, temperature=args.temperature)
        yield NamedPolicy(args.chat_model, lambda: {"sampler": sampler})


def load_policy(name: str, settings: "SamplingSettings") -> Mapping[str, Any]:
    """Load a model, onto the GPU if there is one; returns what `abut.play` takes for it."""
    from abut.demo.run import load_model

    model, tokenizer = load_model(name)
    import torch

    if torch.cuda.is_available():
        model = model.to("cuda")
    return {"sampler": model, "tokenizer": tokenizer, "sampling": settings}
