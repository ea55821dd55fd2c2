r"""Start the parts of a training job on a Ray cluster, and end them together.

    python parts.py --model Qwen/Qwen3-8B --train 2 --vllm 1 --env 2 -- grpo.yaml --max_steps 500

Run this on the cluster's head. A part is an actor on a node whose resources contain its kind
(`train` or `vllm`, as in train.yaml), and runs its command there with on_node.py. Training starts
when vLLM answers at /health, and --env nodes have cores for environments. If a part fails, all
parts end, and its last lines are printed. Ctrl-C and SIGTERM (from `ray job stop`) end all parts
too. The arguments after `--` are for train.py.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import ray

HERE = Path(__file__).resolve().parent
GRACE_S = 15.0
LAST_LINES = 60
_ASK_S = 3.0
# Do not use proxies inside the cluster.
_opener = build_opener(ProxyHandler({}))


class Part:
    """A command on the node of this actor."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def address(self) -> str:
        """Return the address of its node, for the other parts."""
        return ray.util.get_node_ip_address()

    def run(self, command: list[str], environ: dict[str, str]) -> tuple[int, str]:
        """Run a command to its end, and return its status and last lines."""
        on_node = [sys.executable, str(HERE.parent / "slurm" / "on_node.py")]
        self._process = subprocess.Popen(
            [*on_node, "--grace-s", str(GRACE_S), *command],
            env=os.environ | environ,
            cwd=HERE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        last: deque[str] = deque(maxlen=LAST_LINES)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            print(line, end="", flush=True)  # Ray forwards it to parts.py
            last.append(line)
        return self._process.wait(), "".join(last)

    def end(self) -> None:
        """Tell the command to end; `run` returns when all of its processes have ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


class Job:
    """All parts; a context manager that ends them.

    Args:
        limit_s: seconds to wait for nodes, and for a part to be ready.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._parts: dict[str, Any] = {}
        self._runs: dict[Any, str] = {}

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        running = [run for run in self._runs if not ray.wait([run], timeout=0)[0]]
        for run in running:
            self._parts[self._runs[run]].end.remote()
        ray.wait(running, num_returns=len(running) or 1, timeout=GRACE_S + 5) if running else None
        for part in self._parts.values():
            ray.kill(part)
        say("all parts have ended")

    def place(self, kind: str, count: int) -> list[str]:
        """Start actors on nodes of a kind, and return their addresses.

        Raises:
            SystemExit: there are too few such nodes.
        """
        made = ray.remote(Part).options(
            resources={kind: 1}, num_cpus=0, max_restarts=0, max_concurrency=3
        )
        placed = {f"{kind}-{k}": made.remote() for k in range(count)}
        self._parts |= placed
        asked = [part.address.remote() for part in placed.values()]
        there, _ = ray.wait(asked, num_returns=count, timeout=self._limit_s)
        if len(there) < count:
            fail(
                f"{len(there)} of {count} nodes with the resource {kind!r} are available; the "
                f"cluster has {ray.cluster_resources()}"
            )
        return [str(address) for address in ray.get(asked)]

    def start(self, name: str, command: list[str], **environ: str) -> None:
        """Start a part."""
        say(f"{name} starts")
        self._runs[self._parts[name].run.remote(command, environ)] = name

    def ready(self, name: str, url: str) -> None:
        """Wait until a part answers at a URL.

        Raises:
            SystemExit: a part ended first, or it took too long.
        """
        until = time.monotonic() + self._limit_s
        while not answers(url):
            self.ended(timeout_s=0.5)
            if time.monotonic() > until:
                fail(f"{name} is not ready after {self._limit_s:g} s: {url} does not answer")
        say(f"{name} is ready")

    def ended(self, timeout_s: float | None = None) -> str | None:
        """Wait for a part to end; return its name, or None after the timeout.

        Raises:
            SystemExit: a part failed.
        """
        done, _ = ray.wait(list(self._runs), timeout=timeout_s)
        if not done:
            return None
        name = self._runs.pop(done[0])
        try:
            status, last = ray.get(done[0])
        except ray.exceptions.RayError as error:  # its node or actor is gone
            fail(f"{name} is gone: {error}")
        if status or not name.startswith("train"):
            fail(f"{name} has ended with status {status}; its last output:\n{last}")
        return name


def answers(url: str) -> bool:
    """Return whether a URL answers with status 200."""
    try:
        _opener.open(url, timeout=_ASK_S).close()
    except OSError:
        return False
    return True


def wait_for_environments(count: int, limit_s: float) -> None:
    """Wait until `count` nodes have cores.

    Raises:
        SystemExit: there are too few such nodes.
    """
    until = time.monotonic() + limit_s
    while (
        there := sum(n["Alive"] and n["Resources"].get("CPU", 0) > 0 for n in ray.nodes())
    ) < count:
        if time.monotonic() > until:
            fail(f"{there} of {count} nodes with cores for environments are available")
        time.sleep(0.5)


def say(text: str) -> None:
    """Print a line with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def fail(text: str) -> Any:
    """Print why the job ends, and end it."""
    say(text)
    raise SystemExit(1)


_told: list[int] = []


def stopped(number: int, frame: object) -> None:
    """Exit with the status of a script that a signal has ended."""
    say(f"the job was told to end ({signal.Signals(number).name})")
    _told.append(128 + number)
    raise SystemExit(_told[0])


def vllm_command(given: argparse.Namespace, k: int, address: str, first: str) -> list[str]:
    """Return the command of node `k` of one server; only its first node takes requests."""
    engines = given.gpus // given.tensor_parallel
    more = ["--headless", "--data-parallel-start-rank", str(k * engines)] if k else []
    return [
        *("vllm", "serve", given.model, "--host", address, "--port", str(given.vllm_port)),
        *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"),
        *("--weight-transfer-config", '{"backend": "nccl"}'),
        *("--tensor-parallel-size", str(given.tensor_parallel)),
        *("--data-parallel-size", str(engines * given.vllm)),
        *("--data-parallel-size-local", str(engines), "--data-parallel-address", first),
        *("--data-parallel-rpc-port", "13345", *more),
    ]


def train_command(given: argparse.Namespace, k: int, first: str, vllm_url: str) -> list[str]:
    """Return the command of accelerate, with one process per GPU."""
    return [
        *("accelerate", "launch", "--num_machines", str(given.train)),
        *("--num_processes", str(given.train * given.gpus), "--machine_rank", str(k)),
        *("--main_process_ip", first, "--main_process_port", str(given.main_port)),
        *given.accelerate_flags.split(),
        *(str(HERE / "train.py"), "--config", *given.words[:1]),
        *("--model_name_or_path", given.model, "--vllm_server_base_url", vllm_url),
        *given.words[1:],
    ]


def parsed() -> argparse.Namespace:
    """Return the options."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--model", required=True, help="model for vLLM and the trainer")
    for kind in ("train", "vllm", "env"):
        parser.add_argument(f"--{kind}", type=int, default=1, help=f"nodes of the kind {kind!r}")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs per node")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs per vLLM engine")
    parser.add_argument("--vllm-port", type=int, default=8000)
    parser.add_argument("--main-port", type=int, default=29500)
    parser.add_argument(
        "--limit-s", type=float, default=1800.0, help="seconds for a part to be ready"
    )
    flags = "--multi_gpu --mixed_precision no --dynamo_backend no"
    parser.add_argument("--accelerate-flags", default=flags)
    parser.add_argument("words", nargs="+", help="a YAML file for train.py, and options")
    given = parser.parse_args()
    if given.gpus % given.tensor_parallel:
        parser.error(
            f"--gpus {given.gpus} is not a multiple of --tensor-parallel {given.tensor_parallel}"
        )
    return given


def main() -> None:
    """Run the job."""
    given = parsed()
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), logging_level="ERROR")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(
            number, stopped
        )  # replaces Ray's handler, which ends this process immediately
    with Job(given.limit_s) as job:
        vllm, train = job.place("vllm", given.vllm), job.place("train", given.train)
        for k, address in enumerate(vllm):
            command = vllm_command(given, k, address, vllm[0])
            job.start(f"vllm-{k}", command, VLLM_SERVER_DEV_MODE="1", VLLM_HOST_IP=address)
        wait_for_environments(given.env, given.limit_s)
        vllm_url = f"http://{vllm[0]}:{given.vllm_port}"
        job.ready("vllm-0", f"{vllm_url}/health")
        head = ray.get_runtime_context().gcs_address
        paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        for k, address in enumerate(train):
            command = train_command(given, k, train[0], vllm_url)
            own = {"VLLM_HOST_IP": address, "RAY_ADDRESS": head, "PYTHONPATH": paths}
            job.start(f"train-{k}", command, **own)
        for _ in train:
            say(f"{job.ended()} has ended")
        say("training is done")


if __name__ == "__main__":
    try:
        main()
    except SystemExit:  # an exit raised while Ray waits has the status 1
        if _told:
            sys.exit(_told[0])
        raise
