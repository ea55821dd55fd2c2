"""An environment of Harbor without containers: each trial has folders and processes of its own.

Needs Linux, and root. It is no sandbox: all other folders are this machine's.
"""

import asyncio
import os
import shlex
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)

# `/tmp` is mounted last, because the folder that holds the others may be in it.
FOLDERS = ("app", "logs", "tests", "solution", "installed-agent", "workdir", "tmp")


class LocalEnvironment(BaseEnvironment):
    """Runs commands in namespaces of their own, of mounts and of processes."""

    _init: asyncio.subprocess.Process
    _target: int

    @staticmethod
    def type() -> str:
        return "local"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities()

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities()

    def _validate_definition(self) -> None:
        """It needs no image."""

    async def start(self, force_build: bool) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="abut-local-"))
        for folder in FOLDERS:
            (self._root / folder).mkdir()
            Path("/", folder).mkdir(exist_ok=True)
        for folder in ("agent", "verifier", "artifacts"):
            (self._root / "logs" / folder).mkdir()
        mounts = [f"mount --bind {self._root}/{folder} /{folder}" for folder in FOLDERS]
        script = " && ".join(
            [*mounts, "mount -t proc proc /proc", "echo up", "exec sleep infinity"]
        )
        command = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork")
        self._init = await asyncio.create_subprocess_exec(
            *command, "--kill-child", "bash", "-c", script, stdout=asyncio.subprocess.PIPE
        )
        assert self._init.stdout is not None
        if await self._init.stdout.readline() != b"up\n":
            raise RuntimeError("no namespaces: they need Linux, and root")
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text()
        self._target = int(children)

    async def stop(self, delete: bool) -> None:
        if not hasattr(self, "_init"):
            return
        if self._init.returncode is None:
            self._init.kill()  # its child dies with it, and with that all processes of the trial
            await self._init.wait()
        if delete:
            shutil.rmtree(self._root, ignore_errors=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        limit = [] if timeout_sec is None else ["timeout", "-k", "1", str(timeout_sec)]
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--target", str(self._target), "--mount", "--pid", *limit),
            *("bash", "-c", f"cd {shlex.quote(cwd or '/app')}\n{command}"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={
                "PATH": os.environ["PATH"],
                "HOME": "/tmp",
                "LANG": "C.UTF-8",
                "TERM": "xterm",
                **(self._merge_env(env) or {}),
            },
        )
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        assert process.returncode is not None
        return ExecResult(
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            return_code=process.returncode,
        )

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        target = self._here(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, target)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._here(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy(self._here(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        if (source := self._here(source_dir)).exists():
            shutil.copytree(source, target_dir, dirs_exist_ok=True)

    def _here(self, path: Any) -> Path:
        """Return where a path of the trial is on this machine."""
        parts = Path(str(path)).parts
        inside = len(parts) > 1 and parts[1] in FOLDERS
        return self._root.joinpath(*parts[1:]) if inside else Path(*parts)
