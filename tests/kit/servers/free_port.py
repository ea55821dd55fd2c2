"""A port that nobody has."""

import socket


def free_port() -> int:
    """One of the loopback; somebody else may take it before it is used."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        return port
