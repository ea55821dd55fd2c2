"""Ray and the cluster of this process; the first pool joins or starts it, the last leaves it.

Ray is imported only when a pool is made.

Invariant: nothing here waits for an address that does not answer. Ray itself would wait for
minutes, ignoring Ctrl-C, so a connection to each address is tried first.
"""

import ipaddress
import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from abut.errors import EnvError, MissingExtraError, text_of


def the_ray() -> Any:
    """Return the package `ray`.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("abut.ray needs Ray: pip install 'abut[ray]'") from error
    return ray


_CONNECT_S = 5.0
# The store for replies above 100 kB; by default Ray would reserve a third of the machine's memory.
_LOCAL_STORE_BYTES = 128 * 2**20
_JOB_KEYS = ("working_dir", "py_modules", "excludes")
"""The keys of a runtime environment that Ray takes for a whole job, and not for an actor."""

_lock = threading.Lock()
_pools = 0
_folder: str | None = None
_job_env: Mapping[str, Any] = {}


def split_runtime_env(runtime_env: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a runtime environment into the job's part and the part for actors.

    A folder of this machine can be sent only with a job; an address, such as `s3://…`, also works
    for actors.
    """
    job = {
        key: value
        for key, value in runtime_env.items()
        if key in _JOB_KEYS and not (isinstance(value, str) and "://" in value)
    }
    return job, {key: value for key, value in runtime_env.items() if key not in job}


def join(address: str | None, job_env: Mapping[str, Any], *, ranks: int) -> Callable[[], None]:
    """Join a cluster, or start one on this machine; return a function that leaves it.

    Args:
        address: `host:port` of the cluster's head. None: `RAY_ADDRESS`, otherwise this machine.
        job_env: the job's part of the runtime environment.
        ranks: the number of processes that train together.

    Raises:
        EnvError: nothing answers at the address, or Ray cannot join the cluster from here.
        ValueError: the address is invalid, or this process has already joined another cluster.
    """
    global _pools, _job_env
    address = address or os.environ.get("RAY_ADDRESS") or None
    with _lock:
        if the_ray().is_initialized():
            _check_joined(address, job_env)
            if _pools == 0:  # the user's own `ray.init`, so not ours to leave
                return lambda: None
        else:
            _init(address, job_env, ranks)
            _job_env = dict(job_env)
        _pools += 1
        return _leave


def check_head() -> None:
    """Check that the head of the cluster answers; may block.

    Raises:
        EnvError: the head does not answer.
    """
    _check_answers(the_ray().get_runtime_context().gcs_address)


def check_reaches(base_url: str) -> None:
    """Check that a gateway can be reached from all nodes; may block.

    Raises:
        EnvError: the gateway is on the loopback of this machine, and there are other nodes.
    """
    if not _is_loopback(urlsplit(base_url).hostname or ""):
        return
    nodes = {n["NodeID"]: n["NodeManagerAddress"] for n in the_ray().nodes() if n["Alive"]}
    here = nodes.get(the_ray().get_runtime_context().get_node_id(), "this machine")
    host = "…" if _is_loopback(here) or " " in here else repr(here)
    if others := sorted({*nodes.values()} - {here}):
        raise EnvError(
            f"agents on {', '.join(others[:4])}{', …' * (len(others) > 4)} cannot reach the "
            f"gateway at {base_url}, which is on the loopback of {here}\n"
            f"hint: use make_rollout_func(…, gateway=Gateway(host={host})) with a name or "
            "address under which the nodes reach this machine; behind a proxy, set public_url= "
            "too"
        )


def room(options: Mapping[str, Any]) -> str:
    """Return what an actor needs and what is free in the cluster, for errors."""
    keys = ("num_cpus", "num_gpus", "memory", "resources", "label_selector")
    asked = {key: options[key] for key in keys if options.get(key)}
    free = {
        name: round(amount, 2)
        for name, amount in sorted(the_ray().available_resources().items())
        if not name.startswith("node:")
    }
    return f"an actor needs {asked}; free in the cluster: {free or 'nothing'}"


def _check_joined(address: str | None, job_env: Mapping[str, Any]) -> None:
    joined = the_ray().get_runtime_context().gcs_address
    if address not in (None, "local", joined) and _resolved(str(address)) != _resolved(joined):
        raise ValueError(
            f"RayPool(address={address!r}): this process has already joined the cluster of "
            f"{joined}\n"
            "hint: a process can join only one cluster; leave address= out, or call "
            "ray.shutdown() first"
        )
    if job_env and dict(job_env) != (_job_env if _pools else {}):
        raise ValueError(
            f"runtime_env={dict(job_env)!r} applies to a whole Ray job, but this job has already "
            "started\n"
            "hint: pass it to the first RayPool, or to ray.init if you call that yourself"
        )


def _init(address: str | None, job_env: Mapping[str, Any], ranks: int) -> None:
    global _folder
    settings: dict[str, Any] = {
        "namespace": "abut",
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": dict(job_env) or None,
    }
    if address in (None, "local"):
        if ranks > 1:
            raise ValueError(
                f"RayPool has no address, so each of the {ranks} ranks would start its own "
                "cluster\n"
                "hint: run `ray start --head` once, and pass RayPool(…, address='host:6379') or "
                "set RAY_ADDRESS"
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # A folder of our own, to take it away again. The sockets in it have long names already, and
        # 107 bytes are the longest that a socket may have.
        base = "/tmp" if Path("/tmp").is_dir() else None
        _folder = tempfile.mkdtemp(prefix="abut-ray-", dir=base)
        settings |= {
            "include_dashboard": False,
            "object_store_memory": _LOCAL_STORE_BYTES,
            "_temp_dir": _folder,
        }
        address = "local"  # without it, Ray joins any cluster that it finds, even a dead one
    else:
        _check_answers(str(address))
    try:
        the_ray().init(address=address, **settings)
    except BaseException as error:
        _shut_down()
        if not isinstance(error, Exception):
            raise
        raise EnvError(
            f"Ray cannot join the cluster at {address}: {text_of(error)}\n"
            "hint: make this machine a node of the cluster (ray start --address=…), with the "
            "same versions of Ray and Python"
        ) from error


def _check_answers(address: str) -> None:
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise ValueError(
            f"RayPool(address={address!r}): must be host:port of the cluster's head\n"
            "hint: use the address that `ray start --head` prints, such as 10.0.0.1:6379; Ray "
            "Client (ray://) and 'auto' are not supported, because they wait for minutes if "
            "nothing answers"
        )
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        raise EnvError(
            f"no Ray cluster answers at {address}: {text_of(error)}\n"
            "hint: check that its head is running (ray start --head) and that this machine can "
            "reach that port"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(
            socket.gethostbyname(host) if ":" not in host else host
        ).is_loopback
    except (OSError, ValueError):  # a name that is only known elsewhere
        return False


def _resolved(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    try:
        return socket.gethostbyname(host), port
    except OSError:
        return host, port


def _leave() -> None:
    global _pools
    with _lock:
        _pools -= 1
        if _pools == 0:
            _shut_down()


def _shut_down() -> None:
    global _folder
    the_ray().shutdown()
    folder, _folder = _folder, None
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
