"""A server that runs as a child process until its pool is closed.

The process has a group of its own, so that Ctrl-C reaches it only through us, and so that all
processes that it starts end with it. A server that exits is started again for the next session.
"""

import asyncio
import logging
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeAlias

from abut.address import end_without_secrets
from abut.concurrency.threads import THREADS
from abut.errors import EnvError
from abut.http import http_get

logger = logging.getLogger(__name__)

Command: TypeAlias = Callable[[], tuple[list[str], int, list[str]]]
"""Makes the command, the port that it will listen at, and the command that ends what it leaves."""

_POLL_S = 0.1
_END_S = 5.0
_TAIL_LINES = 20
_LONGEST_LINE = 500
# OPENAI_API_KEY, HF_TOKEN, PGPASSWORD, SSH_AUTH_SOCK; not MAX_TOKENS, TOKENIZERS_PARALLELISM, PWD.
_SECRET_NAME = re.compile(
    "SECRET|PASSWORD|PASSWD|CREDENTIAL|APIKEY|_PWD$|(^|_)(KEYS?|TOKEN|AUTH)(_|$)", re.I
)
_MOST_BYTES = 2**16  # of the end of a log, and of the answer at /health, which nobody reads


class ServerStartError(EnvError):
    """A server that could not be started."""


class ServerProcess:
    """One local server."""

    local = True
    headers: Mapping[str, str] = {}

    def __init__(
        self,
        name: str,
        command: Command,
        *,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        gets_secrets: bool = False,
        start_timeout_s: float,
    ) -> None:
        """Nothing is started yet.

        Args:
            name: for errors.
            command: see `Command`.
            cwd: the folder to run in.
            environ: more environment variables.
            gets_secrets: whether the process also gets this process's variables whose names are
                those of secrets, as an environment that runs the policy's code should not.
            start_timeout_s: seconds until the server must answer.

        Raises:
            EnvError: this system could not end what would be started.
        """
        if not hasattr(os, "killpg"):  # Windows
            raise EnvError(
                f"{name} cannot be started here: this system has no process groups, so abut could "
                "not stop a server together with its own processes\n"
                "hint: start the server yourself, and pass its address: "
                "OpenEnv('http://127.0.0.1:8000')"
            )
        self.name = name
        self._command = command
        self._cwd = cwd
        self._environ = dict(environ or {})
        self._gets_secrets = gets_secrets
        self._start_timeout_s = start_timeout_s
        self._url = ""
        self._starting: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._cleanup: list[str] = []

    async def url(self) -> str:
        """Return the address of the running server; start it, or wait until it has started.

        Raises:
            ServerStartError: it exited, or did not answer in time; all who wait for the same start
                get the same error.
        """
        if self._starting is None or (self._starting.done() and not self._runs()):
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)
        return self._url

    def end(self) -> None:
        """End the process and all that it started, for good."""
        self._ended = True
        self._end_process()

    def _end_process(self) -> None:
        with self._lock:
            self._end_locked()

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def _start(self) -> None:
        if not self._ended:
            await THREADS.ask(self._spawn)
        if self._ended:
            raise ServerStartError(f"{self.name} is closed")
        deadline = asyncio.get_running_loop().time() + self._start_timeout_s
        while not await self._answers():
            if not self._runs():
                raise self._start_error("exited")
            if asyncio.get_running_loop().time() > deadline:
                error = self._start_error(
                    f"did not answer within start_timeout_s={self._start_timeout_s:g}"
                )
                await THREADS.ask(self._end_process)
                raise error
            await asyncio.sleep(_POLL_S)

    def _spawn(self) -> None:
        with self._lock:
            if self._ended:
                return
            if self._process is not None:
                logger.warning("%s; restarting the server", self._start_error("exited"))
                self._end_locked()
            command, port, self._cleanup = self._command()
            self._url = f"http://127.0.0.1:{port}"
            self._log = tempfile.NamedTemporaryFile(  # noqa: SIM115  # open as long as the server
                "ab", prefix="abut-openenv-", suffix=".log"
            )
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    cwd=self._cwd,
                    env=self._inherited() | self._environ,
                    start_new_session=True,
                )
            except OSError as error:
                self._end_locked()  # its log is open
                raise ServerStartError(f"{self.name} cannot be started: {error}") from error

    def _inherited(self) -> dict[str, str]:
        if self._gets_secrets:
            return dict(os.environ)
        return {key: os.environ[key] for key in os.environ if not _SECRET_NAME.search(key)}

    async def _answers(self) -> bool:
        with suppress(OSError):
            await THREADS.ask(
                lambda: http_get(
                    f"{self._url}/health", local=True, timeout_s=2, max_message_bytes=_MOST_BYTES
                )
            )
            return self._runs()
        return False

    def _start_error(self, what: str) -> ServerStartError:
        code = self._process.poll() if self._process is not None else None
        code_text = "" if code is None else f" with code {code}"
        kept = sorted(os.environ.keys() - self._inherited().keys() - self._environ.keys())
        hint = (
            f"\nhint: the server does not get these variables of this process: {', '.join(kept)}; "
            "pass those that it needs: Serve(…, environ={…})"
        )
        return ServerStartError(
            f"{self.name} {what}{code_text}; the end of its log:\n{self.log()}{hint * bool(kept)}"
        )

    def log(self) -> str:
        """Return the last lines of the server's log, without the values of `environ`."""
        if self._log is None:
            return "  (empty)"
        with open(self._log.name, "rb") as file:
            text = end_without_secrets(file, _MOST_BYTES, self._environ)
        lines = text.splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  {line[:_LONGEST_LINE]}" for line in lines) or "  (empty)"

    def _end_locked(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
            if process.stdin is not None:
                process.stdin.close()
        if self._cleanup:
            cleanup, self._cleanup = self._cleanup, []
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(cleanup, capture_output=True, timeout=_END_S, check=False)
        if self._log is not None:
            self._log.close()
            self._log = None


def free_port() -> int:
    """Return a port that nothing listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
