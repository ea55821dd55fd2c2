r"""Start the parts of a training job on a Ray cluster, and end them together.

    python parts.py --model Qwen/Qwen3-8B --train 2 --vllm 1 --env 2 -- grpo.yaml --max_steps 500

Runs on the cluster's head. A part is an actor on a node that has its kind as a resource (`train`,
`vllm`; train.yaml has such nodes), and its command runs there under on_node.py. Training starts
when vLLM answers at /health and as many nodes have cores for environments as --env says. The first
part that ends otherwise than well ends all, and its last lines are printed; so do Ctrl-C and
SIGTERM, which `ray job stop` sends. What stands behind `--` is for train.py.
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
# Proxies are for what is outside of the cluster.
_opener = build_opener(ProxyHandler({}))


class Part:
    """A command on the node of this actor."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def address(self) -> str:
        """Of its node, for the others."""
        return ray.util.get_node_ip_address()

    def run(self, command: list[str], environ: dict[str, str]) -> tuple[int, str]:
        """Run it to its end; returns its status and the last that it has said."""
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
            print(line, end="", flush=True)  # Ray shows it where parts.py runs
            last.append(line)
        return self._process.wait(), "".join(last)

    def end(self) -> None:
        """Tell it to end; `run` returns when nothing of it is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


class Job:
    """All parts; a context manager, which ends them.

    Args:
        limit_s: for nodes to be there, and for a part to be ready.
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
        """Take nodes of a kind; returns the address of each.

        Raises:
            SystemExit: there are too few.
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
                f"{len(there)} of {count} nodes with the resource {kind!r} are there; the cluster "
                f"has {ray.cluster_resources()}"
            )
        return [str(address) for address in ray.get(asked)]

    def start(self, name: str, command: list[str], **environ: str) -> None:
        """Start a part."""
        say(f"{name} starts")
        self._runs[self._parts[name].run.remote(command, environ)] = name

    def ready(self, name: str, url: str) -> None:
        """Wait until it answers there.

        Raises:
            SystemExit: a part has ended before, or it takes too long.
        """
        until = time.monotonic() + self._limit_s
        while not answers(url):
            self.ended(timeout_s=0.5)
            if time.monotonic() > until:
                fail(f"{name} is not ready after {self._limit_s:g} s: {url} does not answer")
        say(f"{name} is ready")

    def ended(self, timeout_s: float | None = None) -> str | None:
        """The name of a part that has ended well; None where none ends in that time.

        Raises:
            SystemExit: one has ended otherwise.
        """
        done, _ = ray.wait(list(self._runs), timeout=timeout_s)
        if not done:
            return None
        name = self._runs.pop(done[0])
        try:
            status, last = ray.get(done[0])
        except ray.exceptions.RayError as error:  # its node is gone, or its actor
            fail(f"{name} is gone: {error}")
        if status or not name.startswith("train"):
            fail(f"{name} has ended with status {status}; the end of what it said:\n{last}")
        return name


def answers(url: str) -> bool:
    """Whether it does, with 200."""
    try:
        _opener.open(url, timeout=_ASK_S).close()
    except OSError:
        return False
    return True


def wait_for_environments(count: int, limit_s: float) -> None:
    """Wait until so many nodes have cores.

    Raises:
        SystemExit: there are too few.
    """
    until = time.monotonic() + limit_s
    while (
        there := sum(n["Alive"] and n["Resources"].get("CPU", 0) > 0 for n in ray.nodes())
    ) < count:
        if time.monotonic() > until:
            fail(f"{there} of {count} nodes with cores for environments")
        time.sleep(0.5)


def say(text: str) -> None:
    """Print it, with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def fail(text: str) -> Any:
    """Say why the job ends, and end it."""
    say(text)
    raise SystemExit(1)


_told: list[int] = []


def stopped(number: int, frame: object) -> None:
    """As the shell says it of a script that a signal has ended."""
    say(f"the job was told to end ({signal.Signals(number).name})")
    _told.append(128 + number)
    raise SystemExit(_told[0])


def vllm_command(given: argparse.Namespace, k: int, address: str, first: str) -> list[str]:
    """One server; further nodes add engines to it, which take no requests."""
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
    """Accelerate, with a process for each GPU."""
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
    """The options."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--model", required=True, help="for vLLM and the trainer")
    for kind in ("train", "vllm", "env"):
        parser.add_argument(f"--{kind}", type=int, default=1, help=f"nodes of the kind {kind!r}")
    parser.add_argument("--gpus", type=int, default=8, help="of a node")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of one engine of vLLM")
    parser.add_argument("--vllm-port", type=int, default=8000)
    parser.add_argument("--main-port", type=int, default=29500)
    parser.add_argument("--limit-s", type=float, default=1800.0, help="for a part to be ready")
    flags = "--multi_gpu --mixed_precision no --dynamo_backend no"
    parser.add_argument("--accelerate-flags", default=flags)
    parser.add_argument("words", nargs="+", help="a YAML file for train.py, and its options")
    given = parser.parse_args()
    if given.gpus % given.tensor_parallel:
        parser.error(
            f"--gpus {given.gpus} cannot be shared out to engines of {given.tensor_parallel}"
        )
    return given


def main() -> None:
    """Run the job."""
    given = parsed()
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), logging_level="ERROR")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)  # in the place of Ray's, which ends this process at once
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
    except SystemExit:  # what is raised while Ray waits comes out of it with a status of 1
        if _told:
            sys.exit(_told[0])
        raise
