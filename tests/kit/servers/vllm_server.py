"""A vLLM server process for tests."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self


class VLLMServer:
    """One server process: `start` returns at once, `ready` waits for it."""

    def __init__(
        self,
        model: Path,
        *options: str,
        logprobs_mode: str = "processed_logprobs",
        **environ: str,
    ) -> None:
        self._environ = environ
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = model.parent / f"server-{self.port}.log"
        self.process: subprocess.Popen[bytes] | None = None
        # Not `vllm serve`: the metadata of the CPU build has another name than it looks for.
        self._command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        self._command += ["--model", str(model), "--served-model-name", "tiny"]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port)]
        # float32 and eager: logprobs agree with transformers' to the rounding.
        self._command += ["--enforce-eager", "--dtype", "float32", "--max-model-len", "1024"]
        self._command += ["--kv-cache-memory-bytes", str(2**26), "--block-size", "32"]
        self._command += ["--logprobs-mode", logprobs_mode, "--enable-scale-out", *options]

    def start(self) -> Self:
        """Start it where it is not running."""
        if self.process is not None:
            return self
        settings = {
            "TORCHDYNAMO_DISABLE": "1",  # else the first logprobs are compiled, for seconds
            "VLLM_SERVER_DEV_MODE": "1",  # /pause, /resume, /collective_rpc
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | settings | self._environ,
                start_new_session=True,  # it has children
            )
        return self

    def ready(self) -> Self:
        deadline = time.monotonic() + 600  # importing vLLM alone takes minutes on a busy machine
        while not self.healthy():
            assert self.process is not None
            text = self.log.read_text(errors="replace")
            assert self.process.poll() is None, f"the server ended:\n{text[-4000:]}"
            assert time.monotonic() < deadline, f"the server is not ready:\n{text[-4000:]}"
            time.sleep(0.2)
        return self

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def post(self, path: str, body: bytes = b"{}") -> bytes:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=60) as reply:
            return bytes(reply.read())

    def tokens(self) -> int:
        """How many tokens it has sampled."""
        return metric(self.url, "generation_tokens_total")

    def kill(self) -> None:
        """End it without a word, children and all."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
            self.process = None


def metric(url: str, name: str) -> int:
    """What a server says of itself at /metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(f"vllm:{name}{{"))


async def in_flight(url: str, waiting: Sequence[asyncio.Future[Any]]) -> bool:
    """Wait until the server works on requests; False where all had their answers before."""
    while not await asyncio.to_thread(metric, url, "num_requests_running"):
        if all(one.done() for one in waiting):
            return False
        await asyncio.sleep(0.01)
    return True
