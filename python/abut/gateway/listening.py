"""The server of the gateway's loop: where it listens, and how long connections live."""

import asyncio

from aiohttp import web

from abut.gateway.connections import Connection, Connections

_BACKLOG = 4096
# Longer than clients keep a connection that nothing comes over.
_KEEPALIVE_S = 620.0
# A client that is refused before its body was read gets so long to send the rest and read why.
_LINGER_S = 5.0
_SHUTDOWN_S = 1.0


class Listening:
    """A server that listens.

    Attributes:
        port: where.
    """

    def __init__(
        self, runner: web.AppRunner, server: asyncio.Server, connections: Connections | None
    ) -> None:
        self.port: int = server.sockets[0].getsockname()[1]
        self._runner, self._server, self._connections = runner, server, connections

    async def cleanup(self) -> None:
        """Listen no more, and close all connections."""
        self._server.close()
        await self._runner.cleanup()
        if self._connections is not None:
            self._connections.close()


async def serve(
    app: web.Application, host: str, port: int, connections: Connections | None = None
) -> Listening:
    """Listen.

    Args:
        app: what answers.
        host: where.
        port: 0 takes a free one.
        connections: watches those of clients; None: nobody does.

    Raises:
        OSError: the address cannot be had.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=_KEEPALIVE_S,
        lingering_time=_LINGER_S,
        shutdown_timeout=_SHUTDOWN_S,
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
    return Listening(runner, server, connections)
