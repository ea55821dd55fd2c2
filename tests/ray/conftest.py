"""A real cluster, three nodes in one machine: `make test-ray`. Elsewhere these are skipped."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# Both are read when Ray is imported: all of it stays on this machine's own address.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.ray)
            # Ray leaves sockets and a process handle to the collector.
            for warning in ("ResourceWarning", "DeprecationWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning}"))
            ignored = "ignore::pytest.PytestUnraisableExceptionWarning"
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The cluster, which this process has joined itself: pools leave it alone.

    One for each file. Where all nodes are one machine, a process that joins after a node was killed
    is led to the dead one by the oldest Ray that is supported.
    """
    import ray

    from tests.kit.servers.ray_cluster import a_cluster, joined

    with a_cluster(nodes=3) as cluster, joined(cluster):
        logging.getLogger("ray").setLevel(logging.ERROR)
        yield cluster
        assert ray.is_initialized(), "a pool has left a cluster that it has not joined"


@pytest.fixture
def pool_of(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Makes pools, and closes them."""
    from abut.ray import RayPool

    pools = []

    def make(env: Any, *, size: int = 1, **options: Any) -> Any:
        pools.append(RayPool(env, size=size, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
