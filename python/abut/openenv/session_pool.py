"""Sessions, kept from one episode to the next, on servers that give only so many.

Invariant: a session has one borrower at a time, and one that is not in order is never lent again.
The pool learns from a server's refusal how many sessions the server gives. A rollout that finds
none free waits in line as long as others play. If nobody plays, waiting ends with the servers' own
errors.
"""

import asyncio
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from abut.concurrency.clock import backoff
from abut.concurrency.lending import LendingPool
from abut.errors import EnvError
from abut.openenv.server_process import ServerStartError
from abut.openenv.target import EnvServer
from abut.openenv.wire import (
    FactoryError,
    NoSessionError,
    Session,
    SessionFull,
    SessionLimits,
    open_session,
)

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 2.0
_delays_s = functools.partial(backoff, _FIRST_DELAY_S, _LONGEST_DELAY_S)


@dataclass(eq=False)
class ServerState:
    """A server as seen from here."""

    env_server: EnvServer
    max_sessions: int | None
    """None: not known yet."""
    sessions: int = 0
    """Our sessions, the ones that are being made included."""
    error: EnvError | None = None
    """Why it gave no session; None once it gave one."""
    refused_since: float = 0.0
    """When it began to give none while we had none on it."""
    retry_at: float = 0.0
    delays_s: Iterator[float] = field(default_factory=_delays_s)

    @property
    def has_room(self) -> bool:
        """True if it may give another session."""
        return self.max_sessions is None or self.sessions < self.max_sessions


class SessionPool(LendingPool[Session | ServerState]):
    """Lends sessions of several servers.

    Args:
        servers: where the sessions are.
        limits: how long servers are waited for.
        max_sessions: on one server at most; None: as many as it gives.
        reuse: False closes each session after its episode.
        headers: for all servers.
    """

    def __init__(
        self,
        servers: Sequence[EnvServer],
        limits: SessionLimits,
        *,
        max_sessions: int | None,
        reuse: bool,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._limits = limits
        self._reuse = reuse
        self._headers = headers
        self._max_sessions = max_sessions
        self._servers = [ServerState(server, max_sessions) for server in servers]
        self._server_of: dict[Session, ServerState] = {}
        self._idle: dict[Session, asyncio.TimerHandle] = {}

    async def lend(self) -> Session:
        """Wait for a session: one that is idle, or a new one on the server with the fewest.

        Raises:
            EnvError: no session can be had, and none of this pool will become free.
        """
        began = asyncio.get_running_loop().time()
        while True:
            # A new session is made outside of the line: the next may have one of another server.
            taken = await self._next_in_line(began)
            if isinstance(taken, Session):
                return taken
            with suppress(NoSessionError, ServerStartError):
                return await self._open(taken)

    async def renew(self, session: Session) -> Session:
        """Replace a session by a new one on the same server, without waiting in line again.

        Raises:
            EnvError: the server gives none; the old one is gone.
        """
        server = self._server_of.pop(session)
        try:
            await session.close()
            while True:
                try:
                    return await self._connect(server)
                except SessionFull:  # its end of the old one still runs
                    await asyncio.sleep(_FIRST_DELAY_S)
        except BaseException:
            self._count_one_less(server)
            raise

    def give_back(self, session: Session) -> None:
        """Take a session back, for the next episode or to be closed."""
        if session not in self._server_of:
            return  # the pool was closed meanwhile
        if not session.usable or not self._reuse:
            self._drop(session)
            return
        loop = asyncio.get_running_loop()
        self._idle[session] = loop.call_later(self._limits.idle_timeout_s, self._expire, session)
        self._wake()

    async def close(self) -> None:
        """Close all sessions, also those that are lent."""
        for timer in self._idle.values():
            timer.cancel()
        self._idle.clear()
        for session in list(self._server_of):
            self._drop(session)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def end_servers(self) -> None:
        """End the servers that were started; on any thread, after `close`."""
        for server in self._servers:
            server.env_server.end()

    def _take(self) -> Session | ServerState | None:
        """Take an idle session, or a place for a new one on the server with the fewest."""
        while self._idle:
            session, timer = self._idle.popitem()  # the one that was used last
            timer.cancel()
            if session.usable:
                return session
            self._drop(session)
        now = asyncio.get_running_loop().time()
        free = [s for s in self._servers if s.has_room and s.retry_at <= now]
        if not free:
            return None
        server = min(free, key=lambda server: server.sessions)
        server.sessions += 1
        return server

    def _next_look(self) -> float | None:
        """Return when a server may be asked again."""
        return min((s.retry_at for s in self._servers if s.has_room), default=None)

    async def _open(self, server: ServerState) -> Session:
        try:
            session = await self._connect(server)
        except BaseException as error:
            self._count_one_less(server)
            if isinstance(error, NoSessionError | ServerStartError):
                self._refused(server, error)
            raise
        server.error, server.delays_s = None, _delays_s()
        return session

    async def _connect(self, server: ServerState) -> Session:
        try:
            session = await open_session(
                await server.env_server.url(),
                headers={**self._headers, **server.env_server.headers},
                local=server.env_server.local,
                limits=self._limits,
            )
        except FactoryError as error:
            said, _, hint = str(error).partition("\nhint: ")
            log = (
                server.env_server.log()
            )  # of a server that was started here, which nobody else has
            more = f"hint: {hint}" if log is None else f"the end of the server's log:\n{log}"
            raise EnvError(f"{said}\n{more}") from error
        self._server_of[session] = server
        return session

    def _refused(self, server: ServerState, error: NoSessionError | ServerStartError) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(error, SessionFull):
            limit = error.max_sessions or max(1, server.sessions)
            server.max_sessions = min(limit, self._max_sessions or limit)
        if server.sessions == 0:  # else they are ours, and one comes free
            if server.error is None:
                server.refused_since = now
            server.error = error
        server.retry_at = now + next(server.delays_s)

    def _give_up(self, began: float) -> None:
        """Raise if no session is ours, and no server gives one."""
        if self._server_of:
            return
        now = asyncio.get_running_loop().time()
        limit_s = self._limits.connect_timeout_s
        errors = []
        patience = False
        for server in self._servers:
            if server.error is None:
                return
            errors.append(server.error)
            if not isinstance(server.error, ServerStartError):  # time may help
                patience = True
                if now - max(began, server.refused_since) <= limit_s:
                    return
        lines = [str(error) for error in errors]
        if patience and all(isinstance(error, SessionFull) for error in errors):
            lines.append(
                "hint: other clients held the server's sessions for "
                f"connect_timeout_s={limit_s:g}; raise that limit, or start more servers "
                "(Serve(…, replicas=…), or a list of addresses)"
            )
        elif patience:
            lines.append(
                f"hint: abut tried for connect_timeout_s={limit_s:g}; check that the server is "
                "running"
            )
        raise EnvError("\n".join(lines)) from errors[0]

    def _drop(self, session: Session) -> None:
        server = self._server_of.pop(session, None)
        if server is not None:
            self._spawn(session.close())
            self._count_one_less(server)

    def _expire(self, session: Session) -> None:
        # Another process may wait for it: sessions are few.
        if self._idle.pop(session, None) is not None:
            self._drop(session)

    def _count_one_less(self, server: ServerState) -> None:
        server.sessions -= 1
        self._wake()
