"""The targets of `OpenEnv`: an address, or a server to start.

A server that abut starts ends with its pool and with this process, even if the process is killed.
"""

import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Protocol, TypeAlias

from abut.address import Address, shown
from abut.openenv.server_process import ServerProcess, free_port

_CONTAINER_PORT = 8000  # that of every image of OpenEnv

# `-e KEY` passes a variable on; `-e KEY=value` says it on the command line.
_SETS_VARIABLE = re.compile(r"(?s)(-[dit]*e|--env)[ =]?[^-=\s][^=\s]*=.*")

# A variable of the container is one of the docker command too, which must not heed it.
_OF_DOCKER = re.compile("HOME|PATH|(DOCKER|LD)_.*")

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
    """A server that abut starts with uvicorn when its first session is needed."""

    app: str = field(metadata={"help": "The app, as for uvicorn: `package.server.app:app`."})
    _: KW_ONLY
    replicas: int = field(default=1, metadata={"help": "Number of processes."})
    python: str | None = field(
        default=None,
        metadata={"help": "The Python that has the app and uvicorn. None: this Python."},
    )
    cwd: str | PathLike[str] | None = field(
        default=None, metadata={"help": "The folder to run in; the app can import from it."}
    )
    environ: Mapping[str, str] = field(
        default_factory=dict,
        repr=False,  # tokens, mostly
        metadata={
            "help": "More environment variables. The server also gets the trainer's, except "
            "secrets such as HF_TOKEN, which abut recognizes by their names."
        },
    )
    start_timeout_s: float = field(
        default=120, metadata={"help": "Seconds until the server must answer at /health."}
    )

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: names the field, its value and what it may be.
        """
        if not re.fullmatch(r"[\w.]+:[\w.]+", self.app):
            raise ValueError(f"Serve.app={self.app!r}: must be like 'package.server.app:app'")
        _check_environ("Serve", self.environ)
        _check_replicas("Serve", self.replicas)


@dataclass(frozen=True)
class Docker:
    """A container that abut starts with `docker run` when its first session is needed."""

    image: str = field(metadata={"help": "The image, which must listen at port 8000."})
    _: KW_ONLY
    replicas: int = field(default=1, metadata={"help": "Number of containers."})
    environ: Mapping[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata={"help": "Environment variables; they are not part of any command line."},
    )
    options: Sequence[str] = field(
        default=(),
        metadata={
            "help": "More options of `docker run`; every user of the machine can see them in `ps`."
        },
    )
    start_timeout_s: float = field(
        default=300,
        metadata={"help": "Seconds until the container must answer at /health, the pull included."},
    )

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: names the field, its value and what it may be.
        """
        if not re.fullmatch(r"[^\s-]\S*", self.image):  # `docker run` would take it for an option
            raise ValueError(f"Docker.image={self.image!r}: must be the name of an image")
        _check_environ("Docker", self.environ)
        for key in self.environ:
            if _OF_DOCKER.fullmatch(key):
                raise ValueError(
                    f"Docker.environ[{key!r}]: the docker command itself reads this variable\n"
                    "hint: set it in the image, or with options=['--env-file', '…']"
                )
        if any(_SETS_VARIABLE.fullmatch(" ".join(two)) for two in pairwise((*self.options, ""))):
            raise ValueError(
                "Docker.options: a variable's value would be visible on the command line\n"
                "hint: environ={'KEY': 'value'}"
            )
        _check_replicas("Docker", self.replicas)


Target: TypeAlias = str | Serve | Docker


class EnvServer(Protocol):
    """One server, which may have to be started before it has an address."""

    name: str
    local: bool
    headers: Mapping[str, str]
    """Headers for this server, besides those of the pool."""

    async def url(self) -> str:
        """Return the http(s) address of the server, once it runs.

        Raises:
            EnvError: it could not be started.
        """
        ...

    def log(self) -> str | None:
        """Return the end of the log of what was started here; None where nothing was."""
        ...

    def end(self) -> None:
        """End what was started, for good."""
        ...


class RunningServer:
    """A server that somebody else runs."""

    def __init__(self, address: Address) -> None:
        self.name = address.url
        self.local = False
        self.headers = address.headers

    async def url(self) -> str:
        """The address."""
        return self.name

    def log(self) -> None:
        """Nothing was started, so its log is elsewhere."""

    def end(self) -> None:
        """Nothing was started."""


def servers_of(target: Target | Sequence[Target]) -> list[EnvServer]:
    """Return the servers of a target.

    Raises:
        TypeError: the target has a wrong type.
        ValueError: the address has an unknown form.
    """
    targets = [target] if isinstance(target, str | Serve | Docker) else list(target)
    if not targets:
        raise ValueError("target=[]: must name at least one server")
    return [server for each in targets for server in _servers(each)]


def _servers(target: Target) -> list[EnvServer]:
    if isinstance(target, str):
        scheme, _, rest = target.partition(":")
        if scheme == "serve":
            target = Serve(rest)
        elif scheme == "docker":
            target = Docker(rest)
        elif scheme == "hf":
            return [RunningServer(Address(space_url(rest)))]
        elif scheme in ("http", "https", "ws", "wss") and rest.startswith("//"):
            address = target.replace("ws", "http", 1) if scheme.startswith("ws") else target
            found = Address.of(address)
            return [RunningServer(replace(found, url=found.url.removesuffix("/ws")))]
    if isinstance(target, Serve):
        return [_served_by_uvicorn(target) for _ in range(target.replicas)]
    if isinstance(target, Docker):
        return [_served_by_docker(target) for _ in range(target.replicas)]
    if not isinstance(target, str):
        raise TypeError(f"target must be a str, Serve or Docker, got {type(target).__name__}")
    raise ValueError(
        f"target={shown(target)!r}: must be http://…, serve:package.server.app:app, hf:org/space "
        "or docker:image"
    )


def space_url(space: str) -> str:
    """Return the address of a Hugging Face space: lower case, all other signs as `-`.

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
        for key in target.environ:
            run += ["--env", key]  # docker takes the value from its own environment
        return [*run, *target.options, target.image], port, ["docker", "rm", "--force", name]

    return ServerProcess(
        f"docker:{target.image}",
        command,
        environ=target.environ,
        gets_secrets=True,  # the docker command, which may need them for a registry; not the image
        start_timeout_s=target.start_timeout_s,
    )


def _check_environ(name: str, environ: Mapping[str, str]) -> None:
    for key, value in environ.items():
        if not re.fullmatch(r"[^=\0]+", key):
            raise ValueError(
                f"{name}.environ: {key.partition('=')[0]!r} is not the name of a variable"
            )
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"{name}.environ[{key!r}]: must be a string")


def _check_replicas(name: str, replicas: int) -> None:
    if replicas < 1:
        raise ValueError(f"{name}.replicas={replicas}: must be at least 1")
