"""The peers, and the virtual environment that they and abut are measured in.

The virtual environment also sees the packages of the running Python: those that are installed, such
as torch, are used and not installed again, and the running environment is not changed. If a peer
cannot be installed or imported, the page prints the reason.
"""

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import types
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import abut

_REPORT = "abut-bench.json"


@dataclass(frozen=True)
class Peer:
    """A package that abut is compared with."""

    name: str
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Options of pip."""


PEERS = {
    peer.name: peer
    for peer in (
        Peer("tokenizers", ("tokenizers>=0.22",)),
        Peer("transformers", ("transformers>=5",)),
        Peer("pillow", ("pillow>=10.1",)),
        Peer("aiohttp", ("aiohttp>=3.12",)),
        Peer("gigatoken", ("gigatoken==0.10.0",)),
        Peer("tiktoken", ("tiktoken>=0.14",)),
        Peer("trl", ("trl>=1.16", "jinja2>=3.1")),
        Peer("openenv", ("openenv==0.10.0", "websockets>=16.1")),
        Peer("ray", ("ray>=2.60",)),
        # It imports httpx but does not require it.
        Peer("renderers", ("renderers==0.1.12", "httpx")),
        # It imports torch but does not require it.
        Peer("tml-renderers", ("tml-renderers==0.2.1", "torch>=2.10")),
        # It pins other versions of torch, transformers and TRL, which its loop does not need.
        Peer("trl-env", ("trl-env==0.1.20",), ("--no-deps", "--ignore-requires-python")),
    )
}


class PeerMissing(Exception):
    """A peer cannot be measured; the message is the reason."""


def load(name: str, module: str, reasons: Mapping[str, str]) -> Any:
    """Import a module of a peer.

    Args:
        name: the peer.
        module: one of its modules.
        reasons: why peers could not be installed.

    Raises:
        PeerMissing: it is not installed, or its import fails.
    """
    if name == "trl-env":
        _stand_in_for_type_aliases()
    try:
        return importlib.import_module(module)
    except Exception as error:  # a package built for other versions can raise anything
        said = reasons.get(name) or f"{type(error).__name__}: {error}".partition("\n")[0]
        raise PeerMissing(said) from error


def versions() -> dict[str, str | None]:
    """Return the version of each peer; None if it is not installed."""
    found: dict[str, str | None] = {}
    for name in PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def default_folder() -> Path:
    """Return the default folder of the environment: in the user's cache, one for each Python."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "abut" / f"bench-{sys.version_info.major}.{sys.version_info.minor}"


def make_venv(folder: Path, say: Callable[[str], None]) -> tuple[Path, dict[str, str]]:
    """Create the environment, or complete it.

    Args:
        folder: the folder of the environment.
        say: receives a line for each step.

    Returns:
        Its Python, and the reasons of the peers that could not be installed.

    Raises:
        OSError, subprocess.CalledProcessError: the environment cannot be created, or the folder
            has something else in it, such as the running Python.
    """
    if folder.resolve() == Path(sys.prefix).resolve():
        raise FileExistsError(
            "it has the running Python: run the benchmarks with the Python of abut's environment"
        )
    scheme = sysconfig.get_paths("venv", vars={"base": str(folder), "platbase": str(folder)})
    python = Path(scheme["scripts"]) / ("python.exe" if os.name == "nt" else "python")
    site = Path(scheme["purelib"])
    report, key = folder / _REPORT, _key()
    known = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
    if known.get("key") != key:
        say(f"creating {folder} for the peers, on top of the packages of {sys.prefix}")
        _empty(folder)
        venv.create(folder, with_pip=True)
        under = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(under)]
        (site / "abut_bench_running.pth").write_text("".join(lines), encoding="utf-8")
        known = {"key": key, "reasons": dict.fromkeys(PEERS, "not tried")}
    for name in known["reasons"].copy():
        say(f"installing {name}")
        known["reasons"].pop(name)
        if reason := _install(python, PEERS[name]):
            known["reasons"][name] = reason
    # Copy the running abut, however it was installed.
    own = Path(abut.__file__).parent
    shutil.rmtree(site / "abut", ignore_errors=True)
    shutil.copytree(own, site / "abut", ignore=shutil.ignore_patterns("__pycache__"))
    report.write_text(json.dumps(known, indent=1), encoding="utf-8")
    return python, known["reasons"]


def _empty(folder: Path) -> None:
    """Empty the folder and leave our mark in it; never remove a folder without the mark."""
    mark = folder / _REPORT
    if folder.exists() and any(folder.iterdir()):
        if not mark.is_file():
            raise FileExistsError("the folder has other files in it")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text("{}", encoding="utf-8")


def _key() -> str:
    """Return a digest of the requirements; if they change, the environment is created again."""
    made_from = [sys.prefix, sys.version, repr(sorted(PEERS.items()))]
    return hashlib.sha256("\n".join(made_from).encode()).hexdigest()


def _install(python: Path, peer: Peer) -> str | None:
    """Install one peer; return the reason if that fails."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, *peer.options, *peer.requirements], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    said = (errors or done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]
    return f"pip cannot install it: {said.removeprefix('ERROR: ')}"


def _stand_in_for_type_aliases() -> None:
    """Let Python 3.11 import trl-env.

    Its `environment` module has only type aliases, in the syntax of 3.12. Its loop runs on 3.11 if
    two names replace them.
    """
    if sys.version_info < (3, 12):
        module = types.ModuleType("trl_env.environment")
        module.__dict__.update({"Env": object, "Seed": str})
        sys.modules.setdefault("trl_env.environment", module)
