"""OpenEnv's wire protocol: one socket, one environment, one request at a time.

Invariant: a reply belongs to the request before it. Frames carry no ids, so a session whose reply
is missing or cannot be read is never used again; and no step is ever sent twice.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.protocol import State

from abut.address import RedirectError, redirected, said
from abut.errors import EnvError, InvalidAction

Observation: TypeAlias = dict[str, Any]
"""The fields of an observation, with `reward` (a number or None) and `done`."""

_TOO_BIG = 1009  # RFC 6455, 7.4.1
_CLOSE_S = 2.0
_REDIRECTS = (300, 301, 302, 303, 307, 308)
_REFUSED = (
    "hint: abut needs the socket to play an episode; an OpenEnv server has one since 0.3, and "
    "without it answers 403 or 404. Otherwise check that the address has no path, and pass "
    "headers= for a private space"
)

# At DEBUG websockets logs what it sends, headers with a token too.
_quiet = logging.getLogger(f"{__name__}.frames")
_quiet.setLevel(logging.INFO)


class _Connect(connect):
    """Follows redirects within an origin."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        if not isinstance(exc, InvalidStatus) or exc.response.status_code not in _REDIRECTS:
            return exc
        try:
            return next(
                (redirected(self.uri, to) for to in exc.response.headers.get_all("Location")), exc
            )
        except RedirectError as error:
            return error


class NoSessionError(EnvError):
    """A server that gives no session now, and may later."""

    def __init__(self, message: str, *, max_sessions: int | None = None) -> None:
        super().__init__(message)
        self.max_sessions = max_sessions
        """How many it gives at once, where it said so."""


class SessionFull(NoSessionError):
    """All sessions of the server are taken."""


@dataclass(frozen=True)
class SessionLimits:
    """How long servers are waited for, and how much is read."""

    connect_timeout_s: float
    session_timeout_s: float
    idle_timeout_s: float
    max_message_bytes: int


class Session:
    """One environment on a server, from its constructor to the end of its socket."""

    def __init__(
        self, socket: ClientConnection, url: str, headers: Mapping[str, str], max_message_bytes: int
    ) -> None:
        self.url = url
        self.headers = headers
        """The headers of every request to its server."""
        self.episodes = 0
        """How many began here."""
        self._socket = socket
        self._max_message_bytes = max_message_bytes
        self._in_order = True

    @property
    def usable(self) -> bool:
        """True if another episode may begin here."""
        return self._in_order and self._socket.state is State.OPEN

    async def reset(self, kwargs: Mapping[str, Any]) -> Observation:
        """Begin an episode.

        Raises:
            EnvError: it failed; the session is not usable any more.
        """
        self.episodes += 1
        return self._observation("reset", await self._request("reset", dict(kwargs)))

    async def step(self, action: Mapping[str, Any], *, tell_errors: bool = False) -> Observation:
        """Send one action.

        Args:
            action: a frame of the server's schema.
            tell_errors: whether a server that raises on it continues with the episode.

        Raises:
            InvalidAction: the server could not read the action; the episode may continue.
            ToldError: the server raised on it, and `tell_errors`; the episode may continue.
            EnvError: it failed; the session is not usable any more.
        """
        try:
            return self._observation("step", await self._request("step", dict(action)))
        except ExecutionError as error:
            if not tell_errors:
                raise EnvError(str(error)) from error
            self._in_order = True
            raise ToldError(error.said) from error

    async def state(self) -> None:
        """Wait until the environment is made. Its state is thrown away: it may hold the answer.

        Raises:
            SessionFull: no session is free.
            EnvError: the environment could not be made.
        """
        try:
            await self._request("state")
        except _StateUnknown:
            self._in_order = True

    async def close(self) -> None:
        """End the session; the server closes its environment."""
        self._in_order = False
        await self._socket.close()

    async def _request(self, kind: str, data: Any = None) -> dict[str, Any]:
        frame = {"type": kind} if data is None else {"type": kind, "data": data}
        text = json.dumps(frame, allow_nan=False)
        if not self._in_order:
            raise EnvError(f"{self.url}: {kind} on a session whose last reply is missing")
        self._in_order = False
        try:
            with suppress(ConnectionClosed):  # why the server closed it may still be unread
                await self._socket.send(text)
            raw = await self._socket.recv()
        except ConnectionClosed as error:
            raise self._lost(kind, error) from error
        answer = self._data(kind, raw)
        self._in_order = True
        return answer

    def _data(self, kind: str, raw: str | bytes) -> dict[str, Any]:
        try:
            frame = json.loads(raw)
            found, data = frame["type"], frame["data"]
        except (ValueError, TypeError, KeyError, RecursionError):
            found, data = None, None
        if found == "error" and isinstance(data, dict):
            raise self._error(kind, data)
        if found != ("state" if kind == "state" else "observation") or not isinstance(data, dict):
            raise self._no_frame(kind, raw)
        return data

    def _observation(self, kind: str, data: dict[str, Any]) -> Observation:
        observation, done = data.get("observation"), data.get("done", False)
        if not isinstance(observation, dict) or not isinstance(done, bool):
            self._in_order = False
            raise self._no_frame(kind, json.dumps(data))
        extra = {"metadata": data["metadata"]} if "metadata" in data else {}
        return {**extra, **observation, "reward": data.get("reward"), "done": done}

    def _error(self, kind: str, data: dict[str, Any]) -> Exception:
        code, message = data.get("code"), data.get("message")
        if code == "CAPACITY_REACHED":
            limit = data.get("max_sessions")
            limit = limit if isinstance(limit, int) and limit > 0 else None
            return SessionFull(f"{self.url}: all sessions are taken", max_sessions=limit)
        if code in ("FACTORY_ERROR", "SESSION_ERROR"):
            return FactoryError(
                f"{self.url} could not create an environment, {code}: {message}\n"
                "hint: the environment's constructor raised; the server's log says where"
            )
        if code == "VALIDATION_ERROR" and kind == "step":
            self._in_order = True
            return InvalidAction(_invalid_text(data.get("errors")))
        if kind == "state":
            return _StateUnknown()
        text = f"{self.url} answered {kind} with {code}: {message}"
        if code == "EXECUTION_ERROR" and kind == "step":
            return ExecutionError(text, said=f"Error: {message}")
        return EnvError(text)

    def _no_frame(self, kind: str, raw: str | bytes) -> EnvError:
        return EnvError(
            f"{self.url}: the reply to {kind} is not a message of OpenEnv: {raw[:80]!r}\n"
            "hint: abut needs the socket /ws of an OpenEnv server, version 0.3 to 0.10"
        )

    def _lost(self, kind: str, error: ConnectionClosed) -> EnvError:
        if error.sent is not None and error.sent.code == _TOO_BIG:
            return EnvError(
                f"{self.url}: the reply to {kind} is longer than max_message_bytes="
                f"{self._max_message_bytes}\nhint: raise max_message_bytes"
            )
        code = "without a word" if error.rcvd is None else f"with code {error.rcvd.code}"
        return EnvError(f"{self.url} closed the socket {code} before it answered {kind}")


class ExecutionError(EnvError):
    """A server that raised on an action; its session stays open."""

    def __init__(self, message: str, *, said: str = "") -> None:
        super().__init__(message)
        self.said = said
        """The server's own words."""


class ToldError(InvalidAction):
    """An `ExecutionError` that the policy is told of."""


class FactoryError(EnvError):
    """A server whose environment raised while it was made."""


class _StateUnknown(Exception):
    """The environment exists, but cannot say its state."""


async def open_session(
    url: str,
    *,
    headers: Mapping[str, str],
    local: bool,
    limits: SessionLimits,
) -> Session:
    """Connect, and wait until the environment is made.

    Raises:
        NoSessionError: the server cannot be reached, or all its sessions are taken.
        EnvError: the server refuses, or its environment cannot be made.
    """
    proxy: dict[str, Any] = {"proxy": None} if local else {}
    try:
        socket = await _Connect(
            socket_url(url),
            additional_headers=dict(headers),
            max_size=limits.max_message_bytes,
            open_timeout=limits.connect_timeout_s,
            close_timeout=_CLOSE_S,
            logger=_quiet,
            ping_timeout=None,  # how long a step may take is for the rollout's limits to say
            **proxy,
        )
    except InvalidStatus as error:
        status = error.response.status_code
        if status >= 500:  # a space that wakes up, a gateway before a server that starts
            raise NoSessionError(f"{url} answered {status}") from error
        raise EnvError(f"{url} answered {status} to a socket at /ws\n{_REFUSED}") from error
    except RedirectError as error:
        raise EnvError(str(error)) from error
    except (OSError, WebSocketException) as error:
        raise NoSessionError(f"{url} cannot be reached, {said(error)}") from error
    session = Session(socket, url, headers, limits.max_message_bytes)
    try:
        async with asyncio.timeout(limits.session_timeout_s) as deadline:
            await session.state()
    except BaseException as error:
        await session.close()
        if isinstance(error, TimeoutError) and deadline.expired():
            raise EnvError(
                f"{url} did not create an environment within "
                f"session_timeout_s={limits.session_timeout_s:g}"
            ) from None
        raise
    return session


def socket_url(url: str) -> str:
    """Return the address of the socket of a server at an http(s) address."""
    return f"ws{url.removeprefix('http').rstrip('/')}/ws"


def _invalid_text(errors: Any) -> str:
    """Return the text for the policy about an action that the server could not read."""
    texts = []
    for error in errors if isinstance(errors, list) else ():
        if isinstance(error, dict):
            place = error.get("loc")
            path = ".".join(map(str, place)) if isinstance(place, list) else ""
            texts.append(f"{path}: {error.get('msg')}" if path else str(error.get("msg")))
    return f"Invalid action: {'; '.join(texts)}" if texts else "Invalid action"
