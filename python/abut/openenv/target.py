"""Where an environment server is: an address, or what starts one.

A server that is started here ends with its pool, and with this process, however that ends.
"""

import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Protocol, TypeAlias

from abut.openenv.server_process import ServerProcess, free_port

_CONTAINER_PORT = 8000  # that of every image of OpenEnv

# Run by the server's own Python, which may not have abut. It ends with its parent: then stdin does.
_SERVE = """
import os, signal, sys, threading
def end_with_parent():
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
threading.Thread(target=end_with_parent, daemon=True).start()
import uvicorn
uvicorn.run(sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]), log_level="warning",
            timeout_graceful_shutdown=1)
"""


@dataclass(frozen=True)
class Serve:
    """A server that is started here, with uvicorn, when its first session is wanted."""

    app: str = field(metadata={"help": "`package.server.app:app`, as for uvicorn."})
    _: KW_ONLY
    replicas: int = field(default=1, metadata={"help": "How many processes."})
    python: str | None = field(
        default=None,
        metadata={"help": "The Python that has the app and uvicorn. None: the one that runs this."},
    )
    cwd: str | PathLike[str] | None = field(
        default=None, metadata={"help": "The folder it runs in, from which it can import."}
    )
    environ: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "Further environment variables."}
    )
    start_timeout_s: float = field(
        default=120, metadata={"help": "Seconds until it has to answer at /health."}
    )

    def __post_init__(self) -> None:
        """Refuse what no server could be started with.

        Raises:
            ValueError: names the field, its value and what it may be.
        """
        if not re.fullmatch(r"[\w.]+:[\w.]+", self.app):
            raise ValueError(f"Serve.app={self.app!r}: must be like 'package.server.app:app'")
        _check_replicas("Serve", self.replicas)


@dataclass(frozen=True)
class Docker:
    """A container that is started here, with `docker run`, when its first session is wanted."""

    image: str = field(metadata={"help": "The image, which listens at port 8000."})
    _: KW_ONLY
    replicas: int = field(default=1, metadata={"help": "How many containers."})
    environ: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "Environment variables."}
    )
    options: Sequence[str] = field(
        default=(), metadata={"help": "Further options of `docker run`."}
    )
    start_timeout_s: float = field(
        default=300, metadata={"help": "Seconds until it has to answer at /health, pull included."}
    )

    def __post_init__(self) -> None:
        """Refuse what no container could be started with.

        Raises:
            ValueError: names the field, its value and what it may be.
        """
        _check_replicas("Docker", self.replicas)


Target: TypeAlias = str | Serve | Docker


class Host(Protocol):
    """One server: it may have to be started before it has an address."""

    name: str
    local: bool

    async def url(self) -> str:
        """The address, as http(s), of a server that runs.

        Raises:
            EnvError: it could not be started.
        """
        ...

    def end(self) -> None:
        """End what was started, for good."""
        ...


class Remote:
    """A server that somebody else runs."""

    def __init__(self, url: str) -> None:
        self.name = url
        self.local = False

    async def url(self) -> str:
        """The address."""
        return self.name

    def end(self) -> None:
        """Nothing was started."""


def hosts_of(target: Target | Sequence[Target]) -> list[Host]:
    """The servers that a target stands for.

    Raises:
        TypeError: it is no target.
        ValueError: it is an address of an unknown form.
    """
    targets = [target] if isinstance(target, str | Serve | Docker) else list(target)
    if not targets:
        raise ValueError("target=[]: must name at least one server")
    return [host for each in targets for host in _hosts(each)]


def _hosts(target: Target) -> list[Host]:
    if isinstance(target, str):
        scheme, _, rest = target.partition(":")
        if scheme == "serve":
            target = Serve(rest)
        elif scheme == "docker":
            target = Docker(rest)
        elif scheme == "hf":
            return [Remote(space_url(rest))]
        elif scheme in ("http", "https", "ws", "wss") and rest.startswith("//"):
            address = target.replace("ws", "http", 1) if scheme.startswith("ws") else target
            return [Remote(address.rstrip("/").removesuffix("/ws"))]
    if isinstance(target, Serve):
        return [_served_by_uvicorn(target) for _ in range(target.replicas)]
    if isinstance(target, Docker):
        return [_served_by_docker(target) for _ in range(target.replicas)]
    if not isinstance(target, str):
        raise TypeError(f"target must be a str, Serve or Docker, got {type(target).__name__}")
    raise ValueError(
        f"target={target!r}: must be http://…, serve:package.server.app:app, hf:org/space or "
        "docker:image"
    )


def space_url(space: str) -> str:
    """The address of a space on Hugging Face: its name in lower case, all other signs as `-`.

    Raises:
        ValueError: it is not `org/space`.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", space):
        raise ValueError(f"target='hf:{space}': must be hf:org/space")
    return f"https://{re.sub('[^a-z0-9]', '-', space.lower())}.hf.space"


def _served_by_uvicorn(target: Serve) -> ServerProcess:
    def command() -> tuple[list[str], int, list[str]]:
        port = free_port()
        return [target.python or sys.executable, "-c", _SERVE, target.app, str(port)], port, []

    return ServerProcess(
        f"serve:{target.app}",
        command,
        cwd=None if target.cwd is None else Path(target.cwd),
        environ=target.environ,
        start_timeout_s=target.start_timeout_s,
    )


def _served_by_docker(target: Docker) -> ServerProcess:
    def command() -> tuple[list[str], int, list[str]]:
        port = free_port()
        name = f"abut-{uuid.uuid4().hex[:12]}"
        # In the foreground: then its log and its end are those of the command.
        run = ["docker", "run", "--rm", "--name", name]
        run += ["--publish", f"127.0.0.1:{port}:{_CONTAINER_PORT}"]
        for key, value in target.environ.items():
            run += ["--env", f"{key}={value}"]
        return [*run, *target.options, target.image], port, ["docker", "rm", "--force", name]

    return ServerProcess(f"docker:{target.image}", command, start_timeout_s=target.start_timeout_s)


def _check_replicas(name: str, replicas: int) -> None:
    if replicas < 1:
        raise ValueError(f"{name}.replicas={replicas}: must be at least 1")
