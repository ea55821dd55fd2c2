"""`abut view --watch`: the page of records that others still write, served to this machine alone.

Invariant: a client without the token learns nothing, not even whether a page exists, and a client
with the token gets the page and its data, never a file. The server listens on 127.0.0.1, and only
answers requests that name this machine as host: another website, whose host name resolves to
127.0.0.1, sends its own name.
"""

import base64
import hmac
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from abut._native import __version__
from abut.errors import AbutError
from abut.parts import PROVENANCE
from abut.records.viewer.catalog import Catalog
from abut.records.viewer.packed import block
from abut.records.viewer.page import markup, policy_of

_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""The ports after them are not compared: `ssh -L` gives the page another one."""

_WAIT_S = 25.0
"""A page that waits for news asks again after so long; browsers and proxies give up after 30."""

_LOOK_S = 1.0
_REST = 10
"""Between two looks the server rests this many times as long as a look took."""


class Watch:
    """Serves the page of a catalog until it is closed.

    Args:
        catalog: what the page shows.
        name: the title of the page.
        port: 0 takes a free one.
        where: the filter that the page begins with.
        without: the fields that are left out, which the page says.
        look_s: how often to look for new records, in seconds.
        on_trouble: is called with why a file could not be read, once for each text.

    Raises:
        OSError: the port is taken.
    """

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        *,
        port: int = 0,
        where: str = "",
        without: Sequence[str] = (),
        look_s: float = _LOOK_S,
        on_trouble: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._catalog = catalog
        self._look_s = look_s
        self._on_trouble = on_trouble
        self._stops = threading.Event()
        self._token = secrets.token_urlsafe(24)
        head = {
            "version": __version__,
            "name": name,
            "made": round(time.time()),
            "where": "",
            "without": without,
            "provenance": PROVENANCE,
            "tokenizers": 0,
            "sources": [],
            "rollouts": {},
            "watched": True,
        }
        packed = base64.b64encode(block(head)).decode("ascii")
        page = markup(name, {"head": packed}, watched=True).encode()
        self._server = _Server(port, catalog, self._token, page)
        fragment = f"#w={quote(where, safe='')}" if where else ""
        self.url = f"http://127.0.0.1:{self._server.server_port}/{self._token}/{fragment}"
        self._threads = [
            threading.Thread(target=self._server.serve_forever, name="abut-view-http"),
            threading.Thread(target=self._look, name="abut-view-look"),
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def close(self) -> None:
        """Stop looking and serving."""
        self._stops.set()
        self._server.is_closing = True
        self._catalog.close()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        said: set[str] = set()
        while not self._stops.is_set():
            began = time.monotonic()
            for trouble in self._catalog.look():
                if trouble not in said:
                    said.add(trouble)
                    self._on_trouble(trouble)
            # A folder on a slow disk takes its time: do not spend most of it looking.
            self._stops.wait(max(self._look_s, _REST * (time.monotonic() - began)))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    is_closing = False

    def __init__(self, port: int, catalog: Catalog, token: str, page: bytes) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.catalog = catalog
        self.token = token
        self.page = page
        self.policy = policy_of(watched=True) + "; frame-ancestors 'none'"

    def server_bind(self) -> None:
        """Bind without a look for the host's name, which can take seconds where DNS is slow."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser closes the connections of pages that are left."""


class _Refused(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: _Server

    def do_GET(self) -> None:
        try:
            kind, body = self._answer()
        except _Refused as refused:
            self.send_error(refused.status)
        except LookupError:
            self.send_error(HTTPStatus.GONE)
        except (AbutError, ValueError, OSError):  # a file that has just been replaced
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            self._send(HTTPStatus.OK, kind, body)

    def _refuse(self) -> None:
        self.close_connection = True  # its body is not read
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(self) -> tuple[str, bytes]:
        server = self.server
        if server.is_closing:  # a browser keeps its connections open
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE)
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or _host_name(hosts[0]) not in _HOSTS:
            raise _Refused(HTTPStatus.FORBIDDEN)
        try:
            target = urlsplit(self.path)
        except ValueError:
            raise _Refused(HTTPStatus.NOT_FOUND) from None
        token, _, what = target.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), server.token.encode()):
            raise _Refused(HTTPStatus.NOT_FOUND)
        # A site that learnt the token still gets nothing. A link may lead here, as in a terminal
        # that is itself a page.
        site = self.headers.get("Sec-Fetch-Site", "none")
        if site not in ("none", "same-origin") and self.headers.get("Sec-Fetch-Mode") != "navigate":
            raise _Refused(HTTPStatus.FORBIDDEN)
        if target.path == f"/{token}/" and not target.query:
            return "text/html; charset=utf-8", server.page
        asked = dict(parse_qsl(target.query, keep_blank_values=True))
        blocks = self._blocks(what, asked)
        framed = b"".join(len(one).to_bytes(4, "little") + one for one in blocks)
        return "application/octet-stream", framed

    def _blocks(self, what: str, asked: Mapping[str, str]) -> Sequence[bytes]:
        catalog = self.server.catalog

        def number(name: str) -> int:
            text = asked.get(name, "")
            if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
                raise _Refused(HTTPStatus.BAD_REQUEST)
            return int(text[:18])

        if what == "changes":
            return catalog.changes(number("epoch"), number("after"), number("version"), _WAIT_S)
        if what == "rollout":
            return catalog.rollout(number("epoch"), number("index"))
        if what == "search":
            where = asked.get("where", "")
            bounds = number("first"), number("last")
            found = catalog.search(number("epoch"), *bounds, where, self._is_awaited)
            return [block({"found": found})]
        raise _Refused(HTTPStatus.NOT_FOUND)

    def _is_awaited(self) -> bool:
        """Return False if the browser has closed the connection, as it does on the next key."""
        # `select.select` raises for a connection whose descriptor is above 1023.
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            is_readable = bool(selector.select(0))
        return not is_readable or bool(self.connection.recv(1, socket.MSG_PEEK))

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        if self.server.is_closing:
            self.send_header("Connection", "close")  # and so does this end of it
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with the name of a status, and with nothing that the request said."""
        status = HTTPStatus(code)
        self._send(status, "text/plain; charset=utf-8", f"{status.phrase}\n".encode())

    def version_string(self) -> str:
        """Return the value of the header `Server`."""
        return "abut"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the address of each request has the token in it."""


def _host_name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
