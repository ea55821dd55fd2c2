"""One server of a fleet: sends requests to it, and notes whether it is available.

Invariant: an answer is read completely or not at all.
"""

import asyncio
import functools
import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from abut.address import RedirectError, redirected, said
from abut.concurrency.clock import backoff
from abut.errors import MissingExtraError

try:
    import aiohttp
except ImportError as error:
    raise MissingExtraError("abut.samplers.vllm needs aiohttp: pip install 'abut[vllm]'") from error

logger = logging.getLogger(__name__)

# Below the 5 s after which vLLM's server closes an idle connection.
_KEEPALIVE_S = 3.0
_CONNECT_S = 10.0
_FIRST_REST_S, _LONGEST_REST_S = 0.1, 5.0
# An answer has the id, logprob and text of each token, which take vLLM 84 bytes.
_BYTES, _BYTES_PER_TOKEN = 2**20, 2**10
_KEEPS_METHOD = (307, 308)
_REDIRECTS = 5
# How long a server is left alone after each failure in a row.
_rests_s = functools.partial(backoff, _FIRST_REST_S, _LONGEST_REST_S)


def open_session(headers: dict[str, str]) -> Any:
    """Open a session for any number of requests at once; only connecting has a time limit."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        headers=headers,
    )


@dataclass(eq=False)
class Unavailable(Exception):
    """A server did not answer this time; it or another server may answer the next time."""

    trouble: str
    rest_s: float | None = None  # how long it wants to be left alone
    busy: bool = False  # it is well, but has too much to do
    stale: bool = False  # maybe no more than an idle connection that it had closed
    nobody_listens: bool = False
    internal: bool = False  # maybe because of the request


class Refused(Exception):
    """The server refused a request and would refuse it again."""

    def __init__(self, message: str, *, path: str, status: int, said: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.status = status
        self.said = said


@dataclass(eq=False)
class FleetServer:
    """One server, and its state since the batch began."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers that only this server gets."""
    checked: bool = False
    """True from the check in this batch until the server fails."""
    ever_checked: bool = False
    """True once the server was checked in any batch."""
    rollouts: int = 0
    """How many rollouts send their requests here."""
    rests_s: Iterator[float] = field(default_factory=_rests_s)
    gone: bool = False
    """True if it refused connections after it had been checked."""
    rests_until: float = 0.0
    """The time from which the server may be asked again, by the monotonic clock."""
    down_since: float | None = None
    """Since when the server has been unavailable; None while it is available."""
    troubles: list[str] = field(default_factory=list)
    """The reasons why it has failed since it was last available, each once; the first may be the
    cause."""
    clocks: set[asyncio.Timeout] = field(default_factory=set)
    """The timeouts of the requests that wait for an answer."""
    checking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def forget(self) -> None:
        """Begin a batch: check again, because another server may run at this address now."""
        self.checked, self.rests_until = False, 0.0
        self.checking = asyncio.Lock()
        self.answered()

    def answered(self) -> None:
        """Note that the server is available."""
        self.rests_s, self.down_since = _rests_s(), None
        self.troubles.clear()

    def failed(self, error: Unavailable) -> None:
        """Let the server rest, for as long as it asked for, or longer with each failure."""
        now = time.monotonic()
        rest_s = next(self.rests_s)
        self.rests_until = now + (rest_s if error.rest_s is None else error.rest_s)
        if error.trouble not in self.troubles:
            self.troubles.append(error.trouble)
        if error.busy and self.checked:
            return
        if self.ever_checked and self.down_since is None:
            logger.warning("the server at %s %s", self.url, error.trouble)
        self.gone = self.gone or (error.nobody_listens and self.ever_checked)
        self.checked = False
        self.down_since = self.down_since or now

    async def send(
        self, session: Any, path: str, body: bytes | None = None, *, tokens: int = 0
    ) -> bytes:
        """Send one request (GET without a body) and read its answer.

        Redirects are followed within the server's origin, and for POST only if it stays POST.

        Args:
            session: from `open_session`.
            path: of the request.
            body: JSON.
            tokens: most tokens of the answer, whose length may be 1 MiB plus 1 KiB for each token.

        Raises:
            Unavailable: the server did not answer, but may answer the next time.
            Refused: the server would give the same answer again.
        """
        most = _BYTES + _BYTES_PER_TOKEN * tokens
        try:
            async with asyncio.timeout(None) as clock:
                self.clocks.add(clock)
                try:
                    reply, content = await self._exchange(session, path, body, most)
                finally:
                    self.clocks.discard(clock)
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            trouble = "refuses connections" if refused else f"cannot be reached: {said(error)}"
            raise Unavailable(trouble, nobody_listens=refused) from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            raise Unavailable(f"closed the connection: {said(error)}", stale=True) from error
        except aiohttp.ClientPayloadError as error:
            raise Unavailable(f"broke off its answer: {said(error)}") from error
        except aiohttp.ClientError as error:
            raise Unavailable(f"cannot be reached: {said(error)}") from error
        except TimeoutError as error:
            raise Unavailable("does not answer, not even on /health") from error
        if len(content) > most:
            raise Refused(
                f"the server at {self.url} answers {path} with more than {most} bytes, which is "
                "the limit: 1 MiB, and 1 KiB for each token\nhint: check that the address belongs "
                "to an inference server",
                path=path,
                status=reply.status,
            )
        if reply.status == 200:
            return content
        if reply.status == 429 or reply.status >= 500:
            raise Unavailable(
                f"answers {reply.status} to {path}: {content[:500].decode(errors='replace')}",
                rest_s=_retry_after_s(reply.headers.get("Retry-After")),
                busy=reply.status == 429,
                internal=reply.status == 500,
            )
        message = _message(content)
        raise Refused(
            f"the server at {self.url} answers {reply.status} to {path}: {message}",
            path=path,
            status=reply.status,
            said=message,
        )

    async def _exchange(
        self, session: Any, path: str, body: bytes | None, most: int
    ) -> tuple[Any, bytes]:
        """Return an answer and its body; reads at most one byte more than `most`."""
        method = "GET" if body is None else "POST"
        headers = dict(self.headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = self.url + path
        for _ in range(_REDIRECTS + 1):
            async with session.request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as reply:
                location = reply.headers.get("Location")
                if reply.status // 100 != 3 or location is None:
                    return reply, await _read(reply.content, most + 1)
            try:
                url = redirected(url, location)
            except RedirectError as error:
                raise Refused(str(error), path=path, status=reply.status) from error
            if body is not None and reply.status not in _KEEPS_METHOD:
                break
        raise Refused(
            f"the server at {self.url} answers {path} with a redirect that abut cannot follow",
            path=path,
            status=reply.status,
        )


async def _read(stream: Any, most: int) -> bytes:
    content = bytearray()
    async for chunk in stream.iter_any():
        content += chunk
        if len(content) >= most:
            break
    return bytes(content)


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return content[:500].decode(errors="replace")


def _retry_after_s(value: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header, which holds seconds or a date."""
    if value is None:
        return None
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
