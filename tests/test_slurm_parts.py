"""`examples/slurm/on_node.py`: a part of a job ends when it is told to, and leaves nothing behind.

What `parts.sh` does with such parts is in `nemo_gym/test_submit.py`.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kit.checkout import EXAMPLES
from tests.kit.stage.rollouts import eventually
from tests.kit.training.job import is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Slurm is for Linux")

ON_NODE = [sys.executable, str(EXAMPLES / "slurm" / "on_node.py"), "--grace-s", "0.5"]
# Writes its number into a file of its own, so that what reads it finds it whole.
NOTE = "echo $$ > {0}.new && mv {0}.new {0}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a part, a shell command; `{0}` in it is a file for the number of a process."""
    with ExitStack() as stack:

        def start(shell: str, before: str = "") -> "subprocess.Popen[str]":
            command = [*ON_NODE, "bash", "-c", shell.format(tmp_path / "pid")]
            if before:
                command = ["bash", "-c", before, "bash", *command]
            part = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            stack.callback(part.wait)
            stack.callback(part.kill)
            assert part.stderr is not None
            stack.enter_context(part.stderr)
            return part

        yield start


def noted(folder: Path) -> int:
    """The number that a part has written."""
    assert eventually((folder / "pid").exists)
    return int((folder / "pid").read_text())


def test_its_status_is_that_of_the_command(start: Any) -> None:
    assert start("exit 3").wait(30) == 3
    assert start("kill -KILL $$").wait(30) == 128 + signal.SIGKILL


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = subprocess.run([*ON_NODE, "no-such"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 127
    assert done.stderr == (
        "no-such cannot be started: [Errno 2] No such file or directory: 'no-such'\n"
    )
    done = subprocess.run(ON_NODE, capture_output=True, text=True, timeout=30)
    assert (done.returncode, "there is no command to run" in done.stderr) == (2, True)


@pytest.mark.parametrize("first", ["", 'trap "" TERM; '], ids=["ends", "must be killed"])
def test_what_a_command_leaves_running_ends_with_it(start: Any, tmp_path: Path, first: str) -> None:
    """Also in a session of its own, which no signal to a group would reach."""
    left = f"setsid bash -c '{first}{NOTE}; sleep 600' & "
    part = start(left + "until [ -e {0} ]; do sleep 0.01; done; exit 0")
    assert part.wait(30) == 0
    assert not is_running(noted(tmp_path))


@pytest.mark.parametrize(
    ("trap", "status"),
    [("trap 'exit 5' TERM; ", 5), ("", 128 + signal.SIGTERM), ("trap '' TERM; ", 128 + 9)],
    ids=["by itself", "by the signal", "killed after its grace"],
)
@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(
    start: Any, tmp_path: Path, trap: str, status: int, told: int
) -> None:
    part = start(trap + NOTE + "; while true; do sleep 0.05; done")
    pid = noted(tmp_path)
    part.send_signal(told)
    assert part.wait(30) == status
    assert not is_running(pid)


def test_it_ends_with_the_process_that_started_it(start: Any, tmp_path: Path) -> None:
    shell = start(NOTE + "; sleep 600", before='"$@"; true')
    pid = noted(tmp_path)
    shell.kill()
    assert eventually(lambda: not is_running(pid))


def test_a_command_does_not_ignore_what_its_starter_ignores(start: Any, tmp_path: Path) -> None:
    """A shell has jobs in the background ignore SIGINT, and what they start inherits that."""
    part = start(NOTE + "; sleep 600", before='"$@" & wait')
    assert not ignores_sigint(noted(tmp_path))
    plain = subprocess.Popen(
        ["bash", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    assert plain.stdout is not None
    pid = int(plain.stdout.readline())
    assert eventually(lambda: ignores_sigint(pid)), "so it would be without on_node.py"
    os.kill(pid, signal.SIGKILL)
    plain.wait()
    plain.stdout.close()
    assert part.poll() is None


def ignores_sigint(pid: int) -> bool:
    """Return whether a process ignores SIGINT, according to the kernel."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigIgn:"))
    return bool(int(mask, 16) & 1 << (signal.SIGINT - 1))
