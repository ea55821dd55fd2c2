"""Clusters of several nodes in one machine, small ones, and what is left of them."""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.checkout import IMPORT_PATH

MARK = "ABUT_RAY_RUN"
"""In the environment of each process of a cluster, so that those that stay are found."""

_STORE_BYTES = 80 * 2**20
# A node that was killed is missed after three seconds at most, not after half a minute.
_HEALTH = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 5,
}


@contextmanager
def a_cluster(*, nodes: int) -> Iterator[Any]:
    """A head and further nodes; their processes import what the tests do."""
    from ray.cluster_utils import Cluster

    paths = [IMPORT_PATH, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    # `Cluster` writes its address into Ray's default folder, which only a head that has no
    # `temp_dir` makes.
    os.makedirs(os.path.join(tempfile.gettempdir(), "ray"), exist_ok=True)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
            "temp_dir": folder,
            "_system_config": _HEALTH,
        },
    )
    try:
        for _ in range(nodes - 1):
            a_node(cluster)
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def a_node(cluster: Any, *, address: str | None = None, **resources: float) -> Any:
    """One more node; it has these resources, and may have another address."""
    place = {} if address is None else {"node_ip_address": address}
    return cluster.add_node(
        num_cpus=1, object_store_memory=_STORE_BYTES, resources=resources, **place
    )


async def all_ready(pool: Any) -> None:
    """Each actor of a pool has answered."""
    actors = pool._actors
    async with asyncio.timeout(120):
        # One that died is not among them until its successor is.
        while [host.is_ready for host in actors._actors] != [True] * len(actors._slots):
            await asyncio.sleep(0.01)


@contextmanager
def joined(cluster: Any) -> Iterator[None]:
    """This process is in the cluster, as a user's is that uses Ray besides."""
    import ray

    ray.init(
        address=cluster.address, namespace="test", log_to_driver=False, logging_level=logging.ERROR
    )
    try:
        yield
    finally:
        ray.shutdown()


def processes(mark: str) -> dict[int, str]:
    """The command of each process that has this mark, by its id; not this process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended, or is another user's
            continue
    found.pop(os.getpid(), None)
    return {pid: command for pid, command in found.items() if command}  # the others are zombies


def cpu_s(pids: Iterable[int]) -> float:
    """The seconds of CPU that these processes have taken, of those that still are."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def node_pids(node: Any) -> list[int]:
    """The raylet of a node, and the actors and workers that it has started."""
    raylet = node.all_processes["raylet"][0].process.pid
    children = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == raylet:
            children.append(int(folder.name))
    return [raylet, *children]
