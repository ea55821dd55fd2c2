"""A proxy before the gateway whose connections break: what a client does then is its own."""

import http.client
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

How: TypeAlias = Literal["unheard", "cut"]
"""The answer is read, and the client gets nothing of it, or half of it."""


class DroppingProxy:
    """Passes requests on; breaks the connections of some of them.

    Args:
        base_url: of the endpoint.
        drops: which requests, counted from 0, are not answered in full.
    """

    def __init__(self, base_url: str, drops: Mapping[int, How]) -> None:
        upstream = urlsplit(base_url)
        self.retry_counts: list[str | None] = []
        """What each request said of how often it was sent before."""
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_POST(handler) -> None:
                with lock:
                    number = len(self.retry_counts)
                    self.retry_counts.append(handler.headers["x-stainless-retry-count"])
                handler._pass_on(drops.get(number))

            def _pass_on(self, how: How | None) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                passed = http.client.HTTPConnection(upstream.hostname or "", upstream.port)
                passed.request("POST", self.path, body, dict(self.headers.items()))
                with passed.getresponse() as reply:
                    answer = reply.read()
                passed.close()
                self.close_connection = True
                if how == "unheard":
                    return
                self.send_response(reply.status)
                self.send_header("content-type", reply.headers["content-type"])
                self.send_header("content-length", str(len(answer)))
                # Else the client may ask on a connection that is being closed, and count one more.
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(answer[: len(answer) // 2] if how == "cut" else answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.base_url = f"http://127.0.0.1:{self._server.server_port}{upstream.path}"

    def __enter__(self) -> "DroppingProxy":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
