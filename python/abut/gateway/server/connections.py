"""The server's socket and connections: time limits for requests, and closing of idle connections.

Invariant: a connection that carries a request is never closed here, and an idle one only when no
client would use it any more. A client takes an idle connection from its pool without notice, so
closing it too early loses the request that was just sent on it.

Clients are often made for one rollout and never closed. Each would keep two files of this process
open until the garbage collector finds it, so the server closes its end some time after the rollout.
"""

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from aiohttp import web

TICK_S = 1.0
# Time is counted in ticks of the loop, because while the loop is blocked a client's bytes wait in
# the kernel; a stall of any length is one tick.
HEADERS_TICKS = 10
# httpx keeps an idle connection for 5 seconds, aiohttp for 15, litellm for 120. A client whose loop
# is busy, or paused between two batches, notices only later that the server has closed a
# connection.
IDLE_TICKS = 150
_BACKLOG = 4096
# Longer than clients keep an idle connection.
_KEEPALIVE_S = 620.0
# The time for a client that is refused before its body was read to send the rest and read why.
_LINGER_S = 5.0
_SHUTDOWN_S = 1.0

State: TypeAlias = Literal["head", "request", "idle", "lingers"]
"""The state of a connection: waiting for headers, serving a request, idle, or dropping a body."""


class Connection(asyncio.Protocol):
    """One connection, around the protocol that serves its requests.

    Args:
        serves: the asyncio protocol that reads and answers requests.
        connections: of the server.
    """

    def __init__(self, serves: asyncio.Protocol, connections: "Connections") -> None:
        self.serves = serves
        self.used_by: str | None = None
        """The only rollout that used it; None if none or several did."""
        self.is_left = False
        """True once the only rollout that used it has ended."""
        self.is_shared = False
        """True if several rollouts may use it, so its client outlives each of them."""
        self._connections = connections
        self._state: State = "head"
        self._ticks = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, and wait for the headers of a request."""
        self._transport = transport
        self._connections.add(self)
        self.serves.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on, or drop them if the body is not read."""
        if self._state == "lingers":
            return
        if self._state == "idle":
            self._enter("head")
        self.serves.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self.serves.eof_received()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.serves.pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.serves.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._connections.discard(self)
        self.serves.connection_lost(exc)

    def begin(self) -> None:
        """The headers of a request have arrived."""
        self._enter("request")

    def end(self) -> None:
        """The request was answered."""
        if self._state == "request":
            self._enter("idle")

    def linger(self) -> None:
        """Drop the rest of a body unread, until the client has read the refusal.

        Closing a socket with unread bytes resets the connection, and the reset may overtake the
        answer. aiohttp closes the connection after its lingering time.
        """
        self._enter("lingers")
        self._transport.resume_reading()

    def tick(self) -> None:
        """Count a tick, and close the connection if its time is over."""
        self._ticks += 1
        if self._state == "head" and self._ticks > HEADERS_TICKS:
            self._transport.abort()
        elif self.is_left and self._state == "idle" and self._ticks > IDLE_TICKS:
            self._transport.close()  # after it has written what is left

    @property
    def serves_request(self) -> bool:
        """True while a request is served on it."""
        return self._state == "request"

    def abort(self) -> None:
        """End it at once."""
        self._transport.abort()

    def _enter(self, state: State) -> None:
        self._state, self._ticks = state, 0


class Connections:
    """The open connections of one server, on its loop.

    Attributes:
        ticks: how many ticks have passed while a connection was open.
        most: how many may be open, so that clients cannot use up the files that this process may
            open; None: no limit.
    """

    def __init__(self) -> None:
        self.ticks = 0
        self.most: int | None = None
        self._open: dict[Connection, None] = {}  # the oldest first
        self._of: defaultdict[str, set[Connection]] = defaultdict(set)
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """Watch a connection until it ends; end another one, or this one, if there are too many."""
        self._open[connection] = None
        if self.most is not None and len(self._open) > self.most:
            waiting = (one for one in self._open if not one.serves_request)
            one = next(waiting)  # this one at the latest
            one.abort()
            self.discard(one)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def discard(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._open.pop(connection, None)
        self._no_more_of(connection)

    def note(self, connection: Connection, rollout_id: str) -> None:
        """Note that a rollout uses a connection."""
        if connection.used_by == rollout_id or connection.is_shared:
            return
        if connection.used_by is not None or connection.is_left:
            self.share(connection)
        elif connection in self._open:
            connection.used_by = rollout_id
            self._of[rollout_id].add(connection)

    def share(self, connection: Connection) -> None:
        """Keep a connection that used the run's key open, because its client serves any rollout."""
        self._no_more_of(connection)
        connection.is_shared, connection.is_left = True, False

    def end(self, rollout_id: str) -> None:
        """Close the connections that only this rollout has used once they are idle."""
        for connection in self._of.pop(rollout_id, ()):
            connection.used_by, connection.is_left = None, True

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _no_more_of(self, connection: Connection) -> None:
        if (rollout_id := connection.used_by) is None:
            return
        connection.used_by = None
        self._of[rollout_id].discard(connection)
        if not self._of[rollout_id]:
            del self._of[rollout_id]

    def _tick(self) -> None:
        self.ticks += 1
        for connection in tuple(self._open):
            connection.tick()
        self._timer = None
        if self._open:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)


class ListeningServer:
    """A server that listens.

    Attributes:
        port: the port on which it listens.
    """

    def __init__(
        self, runner: "web.AppRunner", server: asyncio.Server, connections: Connections | None
    ) -> None:
        self.port: int = server.sockets[0].getsockname()[1]
        self._runner, self._server, self._connections = runner, server, connections

    async def cleanup(self) -> None:
        """Stop listening, and close all connections."""
        self._server.close()
        await self._runner.cleanup()
        if self._connections is not None:
            self._connections.close()


async def serve(
    app: "web.Application", host: str, port: int, connections: Connections | None = None
) -> ListeningServer:
    """Listen, and answer requests with an application.

    Args:
        app: answers requests.
        host: an address of this machine.
        port: 0 takes a free port.
        connections: watches the connections of clients; None: they stay open.

    Raises:
        OSError: it cannot listen on this address.
    """
    from aiohttp import web

    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=_KEEPALIVE_S,
        lingering_time=_LINGER_S,
        shutdown_timeout=_SHUTDOWN_S,
        auto_decompress=False,  # one of 4 MB can become 4 GB; see `chunks_of`
    )
    await runner.setup()
    serves = runner.server
    assert serves is not None

    def connected() -> asyncio.Protocol:
        return serves() if connections is None else Connection(serves(), connections)

    try:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(connected, host, port, backlog=_BACKLOG)
    except BaseException:
        await runner.cleanup()
        raise
    return ListeningServer(runner, server, connections)
