"""Exit with 0 if a Ray cluster is up.

    python cluster_is_up.py HOST:PORT [NODES]

The cluster is up if it has at least NODES nodes (default: 1). Run this on one of its nodes.
"""

import argparse
import logging
import socket
import sys

_CONNECT_S = 5.0


def answers(address: str) -> bool:
    """Return whether the head accepts a connection; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError:
        return False
    return True


def nodes_of(address: str) -> int:
    """Return the number of live nodes in the cluster."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    return sum(node["Alive"] for node in ray.nodes())


def main() -> int:
    """Check the cluster, and return the exit status."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("address", help="address of the head")
    parser.add_argument(
        "nodes", type=int, nargs="?", default=1, help="number of nodes that must be up"
    )
    given = parser.parse_args()
    return 0 if answers(given.address) and nodes_of(given.address) >= given.nodes else 1


if __name__ == "__main__":
    sys.exit(main())
