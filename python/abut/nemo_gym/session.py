"""The connections to agents: one for each rollout, open until it has been played.

Invariant: an agent may be silent for as long as it plays, and its machine may not. Nothing comes
over such a connection for minutes, so the operating system asks the other one's whether it is still
there: a node that is cut off costs its rollouts half a minute, not all the time that they have.
"""

import socket
from typing import Any

from abut.errors import MissingExtraError

_CONNECT_S = 30.0
# Silence after which the other machine is asked, how often again, and how often in all.
_IDLE_S, _AGAIN_S, _TIMES = 15, 5, 4
_SETTINGS = (
    ("TCP_KEEPIDLE", _IDLE_S),
    ("TCP_KEEPINTVL", _AGAIN_S),
    ("TCP_KEEPCNT", _TIMES),
    # What was sent and not confirmed, in milliseconds: a request of which nothing has arrived.
    ("TCP_USER_TIMEOUT", (_IDLE_S + _AGAIN_S * _TIMES) * 1000),
)


def the_aiohttp() -> Any:
    """The module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import aiohttp
    except ImportError as error:
        raise MissingExtraError(
            "abut.nemo_gym needs aiohttp: pip install 'abut[nemo_gym]'"
        ) from error
    return aiohttp


def open_session() -> Any:
    """An aiohttp session that waits for answers without a limit."""
    aiohttp = the_aiohttp()
    return aiohttp.ClientSession(
        # A rollout takes longer than servers keep a connection that nothing comes over.
        connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_watched),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
    )


def _watched(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices when the other machine is gone."""
    family, kind, protocol, *_ = address
    watched = socket.socket(family, kind, protocol)
    watched.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SETTINGS:
        if (option := getattr(socket, name, None)) is not None:  # not all systems have all of them
            watched.setsockopt(socket.IPPROTO_TCP, option, value)
    return watched
