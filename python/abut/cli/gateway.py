"""`abut gateway`: an OpenAI-compatible endpoint that records what agents do, without a trainer."""

import argparse
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from abut.cli.command import Commands, asked_to_stop, positive

if TYPE_CHECKING:
    from abut.gateway.server.gateway import Gateway
    from abut.gateway.server.standalone import Standalone

_ON_TERMINAL_S = 1.0
_IN_LOG_S = 60.0


def add_to(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "gateway",
        help="serve a model to agents and record their conversations, without a trainer",
        description="Serve the model of your vLLM servers to agents, in the protocols of OpenAI, "
        "Anthropic and Gemini clients, to evaluate or record the agents without a trainer. The "
        "gateway uses the client's sampling settings. A client's first request starts a rollout; "
        'POST /r/ID/end with {"reward": 1.0} ends it, and so does --idle. Ctrl-C ends and records '
        "all live rollouts, then stops the gateway.",
    )
    parser.add_argument(
        "--upstream",
        required=True,
        nargs="+",
        metavar="URL",
        help="vLLM servers of one model, started with --logprobs-mode processed_logprobs",
    )
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="NAME",
        help="that model's tokenizer: a name or a folder",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="the model's name on the servers (the first they list)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8100, help="port to listen on; 0 picks a free one (8100)"
    )
    parser.add_argument(
        "--public-url", metavar="URL", help="the address at which agents reach the gateway"
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="PATH",
        help="save the rollouts in a folder (Parquet) or a .jsonl file",
    )
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="write the key to this file, readable only by you; without this option, the key is "
        "the value of ABUT_GATEWAY_KEY, or abut prints a new key on the terminal",
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=600.0,
        metavar="S",
        help="end a rollout after this many seconds without a request (600)",
    )
    parser.add_argument(
        "--max-turns", type=positive, metavar="N", help="most calls of a conversation"
    )
    parser.add_argument(
        "--max-completion-tokens",
        type=positive,
        metavar="N",
        help="most tokens of a conversation after its prompt",
    )
    parser.add_argument(
        "--unenforced",
        choices=("refuse", "accept"),
        default="refuse",
        help="if a client asks for an answer in a given format, such as a JSON schema: refuse the "
        "request, or accept it and sample freely (refuse)",
    )
    parser.add_argument(
        "--agents-may-end",
        action="store_true",
        help="let agents end and reward a rollout with the rollout's own key; without this option, "
        "only the gateway's key can",
    )
    parser.add_argument(
        "--session-header",
        metavar="HEADER",
        help="the header in which clients send the session that a call belongs to",
    )
    parser.add_argument(
        "--max-body-bytes",
        type=positive,
        default=64 * 2**20,
        metavar="N",
        help="size of the largest request (64 MiB); 40 screenshots take 53 MB",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it until it is interrupted; returns the exit status."""
    from abut.gateway.server.gateway import KEY_VARIABLE, Gateway, key_is_given
    from abut.rollout.config import RolloutConfig
    from abut.samplers.vllm import VLLMServerSampler

    said = sys.stderr
    if not (key_is_given() or args.key_file or said.isatty()):
        raise ValueError(
            "stderr is not a terminal, so abut does not print the gateway's key there\n"
            f"hint: pass --key-file FILE, or set {KEY_VARIABLE}"
        )
    gateway = Gateway(
        args.host,
        args.port,
        args.public_url,
        key_file=args.key_file,
        unenforced=args.unenforced,
        sampler=VLLMServerSampler(args.upstream, model=args.model),
        tokenizer=args.tokenizer,
        config=RolloutConfig(
            max_turns=args.max_turns, max_completion_tokens=args.max_completion_tokens
        ),
        recorder=args.record,
        idle_s=args.idle,
        agents_may_end=args.agents_may_end,
        session_header=args.session_header,
        max_body_bytes=args.max_body_bytes,
    )
    said.write(f"abut gateway: connecting to {', '.join(args.upstream)}\n")
    with gateway:
        serving = gateway.registry.standalone
        assert serving is not None
        with asked_to_stop() as stops:  # before the address is printed, so that no signal is lost
            _say_where(gateway, said, shows_key=not (key_is_given() or args.key_file))
            _show_status(serving, stops, said)
        said.write("abut gateway: stopping, and recording the live rollouts\n")
    said.write(f"abut gateway: {_status(serving)}\n")
    return 0


def _say_where(gateway: "Gateway", said: TextIO, *, shows_key: bool) -> None:
    root = gateway.base_url.removesuffix("/v1")
    said.write(f"abut gateway: {gateway.base_url}; for a rollout ID of your own: {root}/r/ID/v1\n")
    if shows_key:
        said.write(f"abut gateway: key {gateway.key}\n")
    said.flush()


def _show_status(serving: "Standalone", stops: threading.Event, said: TextIO) -> None:
    """Show a status line until `stops` is set; on a terminal, each line replaces the last."""
    on_terminal = said.isatty()
    before = ""
    while not stops.wait(_ON_TERMINAL_S if on_terminal else _IN_LOG_S):
        if (status := _status(serving)) != before:
            said.write(f"\r\x1b[K{status}" if on_terminal else f"abut gateway: {status}\n")
            said.flush()
            before = status
    if on_terminal:
        said.write("\r\x1b[K")


def _status(serving: "Standalone") -> str:
    calls, tokens = serving.counts()
    return f"{serving.live} live, {serving.ended} ended, {calls} calls, {tokens} tokens sampled"
