"""A job of `examples/` without Slurm: its script is a process in a session of its own."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.kit.checkout import EXAMPLES, IMPORT_PATH, ROOT

COMMANDS = ROOT / "tests" / "nemo_gym" / "nodes"
"""What stands in for Slurm's."""


class Job:
    """The script with what it finds in its PATH; a context manager, which ends it.

    Args:
        folder: of this job: its commands, its logs.
        nodes: of the job, in order.
        commands: what runs instead of `vllm` and others: words before those of the script.
        before: words before the script, such as those that choose a node.
        script: below `examples`.
        settings: of the script.
        arguments: of the script.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str],
        commands: Mapping[str, Sequence[str]],
        *arguments: str,
        before: Sequence[str] = (),
        script: str = "nemo_gym/submit.sbatch",
        **settings: str,
    ) -> None:
        self.folder, self.logs = folder, folder / "logs"
        self.output = folder / "job.out"
        self._before, self._arguments = before, arguments
        self._script = str(EXAMPLES / script)
        own = folder / "bin"
        own.mkdir(parents=True)
        for name, words in commands.items():
            (own / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (own / name).chmod(0o755)
        python = Path(sys.executable).parent
        self._environment = {
            **os.environ,
            "PATH": os.pathsep.join(map(str, (own, COMMANDS, python, os.environ["PATH"]))),
            "PYTHONPATH": IMPORT_PATH,
            "NO_PROXY": "*",
            "HERE": str(EXAMPLES),
            "LOGS": str(self.logs),
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NUM_NODES": str(len(nodes)),
            "SLURM_JOB_NODELIST": ",".join(nodes),
            "SLURM_SUBMIT_DIR": str(folder),
            **settings,
        }

    def __enter__(self) -> Self:
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*self._before, "bash", self._script, *self._arguments],
                env=self._environment,
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    @property
    def said(self) -> str:
        """What the script has said so far."""
        return self.output.read_text(errors="replace")

    def log(self, part: str) -> str:
        """What a part has said so far."""
        file = self.logs / f"{part}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def press_ctrl_c(self) -> None:
        """As a terminal does it: to all of the foreground."""
        os.killpg(self.process.pid, signal.SIGINT)

    def status(self, limit_s: float = 60) -> int:
        """Wait until it has ended; its status as a shell has it."""
        status: int = self.process.wait(limit_s)
        return status if status >= 0 else 128 - status


def is_running(pid: Any) -> bool:
    """Whether a process does, and is none that only its parent remembers."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
