"""Nodes on one machine: network namespaces with an address each, on one switch; needs root."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self


class Network:
    """Nodes that reach each other alone; a context manager.

    Args:
        nodes: their names. Node `k` has the address 10.77.0.`k + 1`.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.prefix = f"abut-{os.getpid()}-"
        self.address = {node: f"10.77.0.{k + 1}" for k, node in enumerate(nodes)}

    def __enter__(self) -> Self:
        try:
            self._ip("netns", "add", self.prefix)  # the switch
            self._ip("-n", self.prefix, "link", "add", "name", "switch", "type", "bridge")
            self._ip("-n", self.prefix, "link", "set", "dev", "switch", "up")
            for node, address in self.address.items():
                self._add(node, address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for node in ("", *self.address):
            # What is left in a namespace would keep it.
            for pid in self.pids(node):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", self.prefix + node], capture_output=True)

    def run(self, node: str, *command: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command on a node to its end."""
        return subprocess.run(
            self.on(node, *command), check=True, capture_output=True, text=True, **options
        )

    def on(self, node: str, *command: str) -> list[str]:
        """The command, on a node."""
        return ["ip", "netns", "exec", self.prefix + node, *command]

    def cut(self, node: str) -> None:
        """Take a node's link down, at the switch."""
        self._ip("-n", self.prefix, "link", "set", "dev", node, "down")

    def mend(self, node: str) -> None:
        """Take it up again."""
        self._ip("-n", self.prefix, "link", "set", "dev", node, "up")

    def pids(self, node: str) -> list[int]:
        """The processes on a node."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.prefix + node], capture_output=True, text=True
        )
        return [int(pid) for pid in listed.stdout.split()]

    def _add(self, node: str, address: str) -> None:
        own = self.prefix + node
        self._ip("netns", "add", own)
        peer = ("peer", "name", "eth0", "netns", own)
        self._ip("-n", self.prefix, "link", "add", "name", node, "type", "veth", *peer)
        self._ip("-n", self.prefix, "link", "set", "dev", node, "master", "switch", "up")
        self._ip("-n", own, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip("-n", own, "link", "set", "dev", device, "up")

    def _ip(self, *words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
