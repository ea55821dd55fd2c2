"""The connections to agents: one for each rollout, open until it has been played.

Invariant: an agent may be silent for as long as it plays, and its machine may not. Nothing comes
over such a connection for minutes, so the operating system asks the other one's whether it is still
there: a node that is cut off costs its rollouts half a minute, not all the time that they have.
"""

import json
import socket
from collections.abc import Mapping
from typing import Any

from abut.address import said
from abut.errors import MissingExtraError

_CONNECT_S = 30.0
_MOST_BYTES = 512 * 2**20
# Silence after which the other machine is asked, how often again, and how often in all.
_IDLE_S, _AGAIN_S, _TIMES = 15, 5, 4
_SETTINGS = (
    ("TCP_KEEPIDLE", _IDLE_S),
    ("TCP_KEEPINTVL", _AGAIN_S),
    ("TCP_KEEPCNT", _TIMES),
    # What was sent and not confirmed, in milliseconds: a request of which nothing has arrived.
    ("TCP_USER_TIMEOUT", (_IDLE_S + _AGAIN_S * _TIMES) * 1000),
)


class RunSession:
    """Asks agents to play, any number at once.

    Raises:
        MissingExtraError: aiohttp is not installed.
    """

    def __init__(self) -> None:
        try:
            import aiohttp
        except ImportError as error:
            raise MissingExtraError(
                "abut.nemo_gym needs aiohttp: pip install 'abut[nemo_gym]'"
            ) from error
        self._client_error = aiohttp.ClientError
        self._session = aiohttp.ClientSession(
            # A rollout takes longer than servers keep a connection that nothing comes over.
            connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_watched),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        )

    async def run(self, url: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Post to `/run` of the server there; returns status and body, however long that takes.

        Raises:
            OSError: no connection, one that broke, or an answer without an end.
        """
        try:
            async with self._session.post(
                f"{url}/run",
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
            ) as reply:
                answer = bytearray()
                async for chunk in reply.content.iter_any():
                    answer += chunk
                    if len(answer) > _MOST_BYTES:
                        raise OSError(f"the answer has more than {_MOST_BYTES} bytes")
                return reply.status, bytes(answer)
        except self._client_error as error:  # not all of them are OSErrors
            raise OSError(said(error)) from error

    async def close(self) -> None:
        """Give up what is asked, and close."""
        await self._session.close()


def _watched(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices when the other machine is gone."""
    family, kind, protocol, *_ = address
    watched = socket.socket(family, kind, protocol)
    watched.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SETTINGS:
        if (option := getattr(socket, name, None)) is not None:  # not all systems have all of them
            watched.setsockopt(socket.IPPROTO_TCP, option, value)
    return watched
