"""Run one part of a job on its node, and end all of its processes with it.

    python on_node.py [--grace-s 15] COMMAND ...

On SIGTERM or SIGINT, this process sends SIGTERM to the command. Processes that the command leaves
running, including daemons, become children of this process. They get SIGTERM when the command ends,
and SIGKILL after the grace period. The exit status is the command's, or 128 plus the signal that
killed it. Slurm can also end remaining processes if it is configured to track them; this works
everywhere.
"""

import argparse
import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# The interval of SIGKILLs, because remaining processes can start new ones in the meantime.
_AGAIN_S = 1.0


class Part:
    """The command's process and its descendants.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(self, command: list[str], grace_s: float) -> None:
        self._grace_s = grace_s
        libc = ctypes.CDLL(None)
        # Adopt orphans of the command, and end together with the parent of this process.
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # Block signals until there is a process to forward them to.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        for number in _ENDING:
            signal.signal(number, self._told_to_end)
        signal.signal(signal.SIGALRM, self._out_of_patience)
        # A separate session, so that Ctrl-C reaches only this process; and default signal handlers,
        # because a background process of a shell would ignore SIGINT.
        self._child = os.posix_spawnp(
            command[0], command, os.environ, setsid=True, setsigmask=(), setsigdef=_ENDING
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    def status(self) -> int:
        """Wait until all its processes have ended, and return the status of the command."""
        status = 0
        while True:
            try:
                pid, ended = os.waitpid(-1, 0)
            except ChildProcessError:
                return status
            if pid == self._child:
                status = os.waitstatus_to_exitcode(ended)
                status = status if status >= 0 else 128 - status
                self._end(descendants(os.getpid()))  # processes that the command has left

    def _told_to_end(self, number: int, frame: object) -> None:
        self._end([self._child])

    def _end(self, pids: list[int]) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._grace_s, _AGAIN_S)
        _send(pids, signal.SIGTERM)

    def _out_of_patience(self, number: int, frame: object) -> None:
        _send(descendants(os.getpid()), signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and all their descendants."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:  # it has ended
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main() -> int:
    """Run the command, and return its status."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument(
        "--grace-s", type=float, default=15.0, help="seconds before remaining processes are killed"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    given = parser.parse_args()
    if not given.command:
        parser.error("there is no command to run")
    try:
        part = Part(given.command, given.grace_s)
    except OSError as error:
        print(f"{given.command[0]} cannot be started: {error}", file=sys.stderr)
        return 127
    return part.status()


if __name__ == "__main__":
    sys.exit(main())
