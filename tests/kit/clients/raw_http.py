"""A client that says on a socket of its own what a test wants said, byte for byte."""

import json
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit


class RawClient:
    """One connection to a gateway.

    Args:
        url: of the gateway: anything that has its host and port.
        key: sent as a bearer token; None sends none.
        buffer: how many bytes the system keeps that nobody has read; None: as many as it likes.
    """

    def __init__(self, url: str, key: str | None = None, buffer: int | None = None) -> None:
        address = urlsplit(url)
        self._host, self._key = address.netloc, key
        self.socket = socket.socket()
        self.socket.settimeout(60)
        if buffer is not None:  # before the other side is told of it
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.connect((address.hostname, address.port))
        self._read = b""

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def head(self, path: str, length: int, method: str = "POST", **headers: Any) -> bytes:
        """The request line and headers of a request."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {length}"]
        if self._key is not None:
            lines.append(f"Authorization: Bearer {self._key}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")

    def send(self, path: str, body: Any, **headers: Any) -> None:
        """Send a request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.socket.sendall(self.head(path, len(data), **headers) + data)

    def answer(self) -> tuple[int, Mapping[str, str], Any] | None:
        """The next answer: status, headers and JSON; None where the connection was closed."""
        while b"\r\n\r\n" not in self._read:
            if not self._more():
                return None
        head, _, rest = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = int(headers["content-length"])
        self._read = rest
        while len(self._read) < length:
            assert self._more(), "the connection was closed inside an answer"
        body, self._read = self._read[:length], self._read[length:]
        return int(first.split()[1]), headers, json.loads(body)

    def is_closed(self) -> bool:
        """Whether nothing more comes: the other side has closed. Waits until it knows."""
        try:
            return not self._read and not self._more()
        except ConnectionError:
            return True

    def _more(self) -> bool:
        data = self.socket.recv(65536)
        self._read += data
        return bool(data)
