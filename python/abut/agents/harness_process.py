"""A harness as a process: its limits, and its complete cleanup.

Invariant: when `run` returns, no process of the harness's group is alive. On Linux, processes that
left the group are dead too, unless they cleared their environment, because they are found by a
marker variable. Only a bounded part of the output is kept, and secrets are replaced before the
output is cut.
"""

import atexit
import os
import re
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
_MOST_BYTES = 2**20  # the transcript, and the most that a pipe can hold
_MOST_LINES = 20
_LONGEST_LINE = 500  # an event of Claude Code may have a whole file in it
_MARK = "ABUT_HARNESS"
"""An environment variable that only the processes of one harness inherit."""


class Redactor:
    """Replaces secrets in a stream by their names, also if a secret spans two chunks.

    Args:
        names: the name of each secret.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = {os.fsencode(secret): name.encode() for secret, name in names.items()}
        # The longest first: it may begin with a shorter one, and its rest would show.
        self._secrets = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._secrets)))
        self._held = b""

    def add(self, chunk: bytes) -> bytes:
        """Return the output so far, except for an end that may be the beginning of a secret."""
        if not self._secrets:
            return chunk
        data = self._held + chunk
        certain, done, held_at = bytearray(), 0, self._held_at(data, 0)
        for match in self._pattern.finditer(data):
            if match.start() >= held_at:
                break
            certain += data[done : match.start()] + self._names[match[0]]
            done = match.end()
            if done > held_at:
                held_at = self._held_at(data, done)
        self._held = data[held_at:]
        return bytes(certain + data[done:held_at])

    def end(self) -> bytes:
        """Return the part that was held back; call it at the end of the stream."""
        held, self._held = self._held, b""
        return self._pattern.sub(lambda match: self._names[match[0]], held) if held else b""

    def _held_at(self, data: bytes, start: int) -> int:
        """Return the index of an end that may be the beginning of a secret."""
        for at in range(max(start, len(data) - len(self._secrets[0]) + 1), len(data)):
            end = data[at:]
            if any(len(s) > len(end) and s.startswith(end) for s in self._secrets):
                return at
        return len(data)


class Kept:
    """The beginning and the end of a stream, half of `most_bytes` each."""

    def __init__(self, most_bytes: int) -> None:
        self._half = most_bytes // 2
        self._head, self._tail = bytearray(), bytearray()
        self._left_out = 0

    def add(self, chunk: bytes) -> None:
        """Add a chunk, as far as there is room for it."""
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if (over := len(self._tail) - self._half) > self._half:  # not at every chunk
            del self._tail[:over]
            self._left_out += over

    def text(self) -> str:
        """Return the stream as text; a line in the middle says how much was left out."""
        if self._left_out == 0:  # together, since a character may span both
            return (self._head + self._tail).decode(errors="replace")
        head, tail = (part.decode(errors="replace") for part in (self._head, self._tail))
        return f"{head}\n[{self._left_out} bytes left out]\n{tail}"


class HarnessProcess:
    """One run of a harness.

    Args:
        command: the program and its arguments.
        cwd: the folder in which it runs.
        environ: all of its environment variables.
        prompt: its standard input.
        timeout_s: seconds after which it is ended; None: no limit.
        secret_names: the name that replaces each secret in its output.

    Attributes:
        exit_status: its exit status, negative if a signal ended it; None until it has exited, or if
            it did not exit by itself because its time was over or it was stopped.
        transcript: its standard output, with secrets replaced.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        prompt: str,
        timeout_s: float | None,
        secret_names: Mapping[str, str] | None = None,
    ) -> None:
        self._command = list(command)
        self._cwd = cwd
        self._mark = secrets.token_hex(16)
        self._environ = {**environ, _MARK: self._mark}
        self._prompt = prompt
        self._timeout_s = timeout_s
        self._secret_names = secret_names or {}
        self._is_stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._trainer = os.getpid()
        self.exit_status: int | None = None
        self.transcript = Kept(_MOST_BYTES)
        self._all = Kept(4 * _MOST_LINES * _LONGEST_LINE)

    def run(self) -> None:
        """Run it until it exits, its time is over or it is stopped; called on its own thread.

        Raises:
            OSError: the process cannot start.
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
        """Make `run` end the process and return; may be called on any thread, even before `run`."""
        self._is_stopped.set()

    def last_lines(self) -> str:
        """Return the last lines that it wrote, to its standard output and error."""
        lines = self._all.text().splitlines()[-_MOST_LINES:]
        return "\n".join(f"  {line[:_LONGEST_LINE]}" for line in lines) or "  (empty)"

    def kill_at_exit(self) -> None:
        """Kill the process, because this process is ending and its thread cannot do it."""
        self._is_stopped.set()
        if os.getpid() == self._trainer:  # a forked child has the harnesses of its parent here
            self._end(signal.SIGKILL)

    def _read(self, process: subprocess.Popen[bytes], out: IO[bytes], err: IO[bytes]) -> None:
        # A redactor for each pipe, since their chunks alternate.
        pipes = {pipe: Redactor(self._secret_names) for pipe in (out, err)}
        try:
            self._read_pipes(process, pipes, out)
        finally:
            for pipe, redactor in pipes.items():
                self._keep(redactor.end(), pipe is out)

    def _read_pipes(
        self,
        process: subprocess.Popen[bytes],
        pipes: Mapping[IO[bytes], Redactor],
        out: IO[bytes],
    ) -> None:
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as selector:
            for pipe, redactor in pipes.items():
                selector.register(pipe, selectors.EVENT_READ, redactor)
            while not self._is_stopped.is_set():
                # Clock and process are asked before the pipes are read, so that all output before
                # the deadline or the exit is read. The end of the pipes is not awaited, because a
                # grandchild may hold them open forever.
                is_late = deadline is not None and time.monotonic() > deadline
                status = process.poll()
                is_over = is_late or status is not None
                for key, _ in selector.select(0 if is_over else _POLL_S):
                    chunk = os.read(key.fd, _MOST_BYTES)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    self._keep(key.data.add(chunk), key.fileobj is out)
                if is_over:
                    self.exit_status = status
                    return

    def _keep(self, chunk: bytes, is_output: bool) -> None:
        self._all.add(chunk)
        if is_output:
            self.transcript.add(chunk)

    def _end(self, sign: signal.Signals) -> None:
        """Send a signal to all processes of the harness, and wait for the first of them."""
        if (process := self._process) is None:
            return
        with suppress(ProcessLookupError, PermissionError):  # macOS: of zombies
            os.killpg(process.pid, sign)
        if sign == signal.SIGKILL:
            # Claude Code starts each command of its shell in a separate session.
            deadline = time.monotonic() + _END_S  # one that waits for a disk dies later
            while (marked := _marked(self._mark)) and time.monotonic() < deadline:
                for pid in marked:
                    with suppress(ProcessLookupError):
                        os.kill(pid, sign)
                time.sleep(_POLL_S / 10)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


def delete_folder(folder: Path) -> bool:
    """Delete a folder that the policy has written to; return whether it is gone.

    `shutil.rmtree` recurses and holds a file open for each level, so a folder of 3000 levels would
    make it fail, and use up the open files of this process meanwhile. `rm` takes any depth.
    """
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        if os.path.lexists(folder):
            with suppress(OSError):
                subprocess.run([*command, "--", str(folder)], capture_output=True, check=False)
    return not os.path.lexists(folder)


def _marked(mark: str) -> list[int]:
    """Return the live processes with this mark in their environment; empty outside Linux.

    A process that clears its environment (`env -i setsid sleep 9`) has no mark and is not found.
    """
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


_LIVE: weakref.WeakSet[HarnessProcess] = weakref.WeakSet()
"""The running harnesses."""


@atexit.register
def _kill_all() -> None:
    for harness in list(_LIVE):
        harness.kill_at_exit()
