"""A harness as a process: what it may cost, and that nothing of it is left behind.

Invariant: when `run` returns, no process of the harness's group is alive, and on Linux none that
has left the group either. However much the harness writes, no more than a bound of it is kept.
"""

import atexit
import os
import secrets
import selectors
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

_POLL_S = 0.05
_END_S = 2.0  # Claude Code and Codex end themselves and their tools within a tenth of it
_MOST_BYTES = 2**20  # of the transcript; and what a pipe can hold at most
_MOST_LINES = 20
_LONGEST_LINE = 500  # an event of Claude Code may have a whole file in it
_MARK = "ABUT_HARNESS"
"""A variable that all processes of one harness inherit, and no others have."""


class Kept:
    """The beginning and the end of what is added, half of `most_bytes` each."""

    def __init__(self, most_bytes: int) -> None:
        self._half = most_bytes // 2
        self._head, self._tail = bytearray(), bytearray()
        self._left_out = 0

    def add(self, chunk: bytes) -> None:
        """Keep a chunk, or as much of it as there is room for."""
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if (over := len(self._tail) - self._half) > self._half:  # not at every chunk
            del self._tail[:over]
            self._left_out += over

    def text(self) -> str:
        """Return it as text; a line in the middle says how much was left out."""
        head, tail = (bytes(part).decode(errors="replace") for part in (self._head, self._tail))
        if self._left_out == 0:
            return head + tail
        return f"{head}\n[{self._left_out} bytes left out]\n{tail}"


class HarnessProcess:
    """One run of a harness.

    Args:
        command: its program and arguments.
        cwd: the folder that it runs in.
        environ: its whole environment.
        prompt: what it reads from its standard input.
        timeout_s: seconds until it is ended; None: no limit.

    Attributes:
        exit_status: the negative number of a signal that ended it; None until it has exited, and
            where it did not exit by itself: its time was over, or it was stopped.
        transcript: what it wrote to its standard output.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        prompt: str,
        timeout_s: float | None,
    ) -> None:
        self._command = list(command)
        self._cwd = cwd
        self._mark = secrets.token_hex(16)
        self._environ = {**environ, _MARK: self._mark}
        self._prompt = prompt
        self._timeout_s = timeout_s
        self._is_stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._trainer = os.getpid()
        self.exit_status: int | None = None
        self.transcript = Kept(_MOST_BYTES)
        self._all = Kept(4 * _MOST_LINES * _LONGEST_LINE)

    def run(self) -> None:
        """Run it until it exits, its time is over or it is stopped; on a thread of its own.

        Raises:
            OSError: it cannot be started.
        """
        if self._is_stopped.is_set():
            return
        _LIVE.add(self)
        try:
            with tempfile.TemporaryFile() as prompt:
                prompt.write(self._prompt.encode(errors="replace"))
                prompt.seek(0)
                self._process = subprocess.Popen(
                    self._command,
                    stdin=prompt,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=self._cwd,
                    env=self._environ,
                    start_new_session=True,
                )
            assert self._process.stdout is not None
            assert self._process.stderr is not None
            with self._process.stdout as out, self._process.stderr as err:
                self._read(self._process, out, err)
        finally:
            self._end(signal.SIGTERM)
            self._end(signal.SIGKILL)
            _LIVE.discard(self)

    def stop(self) -> None:
        """Make `run` end the process and return; from any thread, also before `run` has begun."""
        self._is_stopped.set()

    def last_lines(self) -> str:
        """Return the last lines that it wrote, to its standard output and error."""
        lines = self._all.text().splitlines()[-_MOST_LINES:]
        return "\n".join(f"  {line[:_LONGEST_LINE]}" for line in lines) or "  (empty)"

    def kill_at_exit(self) -> None:
        """Kill it, because this process ends and no thread will."""
        self._is_stopped.set()
        if os.getpid() == self._trainer:  # a forked child has the harnesses of its parent here
            self._end(signal.SIGKILL)

    def _read(self, process: subprocess.Popen[bytes], out: IO[bytes], err: IO[bytes]) -> None:
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            selector.register(err, selectors.EVENT_READ)
            while not self._is_stopped.is_set():
                if deadline is not None and time.monotonic() > deadline:
                    return
                # Asked for before the pipes are read, so what it wrote before its exit is read. The
                # end of the pipes is not waited for, since a grandchild may hold them for ever.
                status = process.poll()
                for key, _ in selector.select(_POLL_S if status is None else 0):
                    chunk = os.read(key.fd, _MOST_BYTES)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    self._all.add(chunk)
                    if key.fileobj is out:
                        self.transcript.add(chunk)
                if status is not None:
                    self.exit_status = status
                    return

    def _end(self, sign: signal.Signals) -> None:
        """Send a signal to all processes of the harness, and wait for the first of them."""
        if (process := self._process) is None:
            return
        with suppress(ProcessLookupError, PermissionError):  # macOS: of zombies
            os.killpg(process.pid, sign)
        if sign == signal.SIGKILL:
            # Claude Code starts each command of its shell in a session of its own.
            deadline = time.monotonic() + _END_S  # one that waits for a disk dies later
            while (marked := _marked(self._mark)) and time.monotonic() < deadline:
                for pid in marked:
                    with suppress(ProcessLookupError):
                        os.kill(pid, sign)
                time.sleep(_POLL_S / 10)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


def _marked(mark: str) -> list[int]:
    """Return the live processes with this mark in their environment; none outside Linux."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


_LIVE: weakref.WeakSet[HarnessProcess] = weakref.WeakSet()
"""The harnesses that run now."""


@atexit.register
def _kill_all() -> None:
    for harness in list(_LIVE):
        harness.kill_at_exit()
