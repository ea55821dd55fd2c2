"""The servers of the Model Context Protocol of one `tool_env`: their tools, and their sessions.

Invariant: the sessions of all rollouts live on one loop of their own, which no batch pauses, and
one task enters and leaves each. The tools that a server has in a session are those that the policy
was shown, or the rollout fails.
"""

import asyncio
import contextvars
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from abut.concurrency.lending import PoolLoop
from abut.concurrency.serving import Serving
from abut.concurrency.threads import THREADS
from abut.errors import EnvError
from abut.tools.mcp_settings import McpServer
from abut.tools.toolbox import Function, Result

if TYPE_CHECKING:
    from abut.tools.mcp_session import McpSession

T = TypeVar("T")

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schemas of a server's tools, by the server's names."""


class McpServers:
    """The servers of one `tool_env`.

    Args:
        servers: their settings, checked.
    """

    def __init__(self, servers: Sequence[McpServer]) -> None:
        self._servers = servers
        self._run: _Run | None = None
        self._known: dict[str, Schemas] = {}

    def schemas(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return each tool's schema with the name of its server in errors.

        The first call starts each server once, and blocks.

        Raises:
            EnvError: a server cannot be started.
            ValueError: a server does not have a tool that its settings name.
        """
        if not self._known:
            known = self._current().ask_servers(self._servers)
            self._known = {
                server.name: _selected(server, known[server.name]) for server in self._servers
            }
        return [
            (server.title, schema)
            for server in self._servers
            for schema in self._known[server.name].values()
        ]

    def episode(self) -> "McpEpisode":
        """Return the sessions of one episode, not yet open."""
        return McpEpisode(self._current(), self._servers, self._known)

    def close(self) -> None:
        """End the shared sessions; the next use starts them again."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _current(self) -> "_Run":
        if self._run is None:
            self._run = _Run(self._servers)
        return self._run


class _Run:
    """The sessions' event loop and the shared sessions, from their first use to `close`."""

    def __init__(self, servers: Sequence[McpServer]) -> None:
        # Not uvloop's loop, which forks to start a process: environments may fork at that time.
        self.loop = PoolLoop("McpServers", asyncio.new_event_loop())
        self.shared = {server.name: _serving(server) for server in servers if server.is_shared}
        self.close = weakref.finalize(self, _close_run, self.loop, list(self.shared.values()))

    def ask(self, call: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Run a coroutine on the sessions' loop, and return a future of the running loop.

        It runs in a separate context. In the context of an environment's call, starting a process
        would wait for the turn of that call, and block the loop.
        """
        return contextvars.Context().run(self.loop.ask, call)

    def ask_servers(self, servers: Sequence[McpServer]) -> dict[str, Schemas]:
        """Return the schemas of all servers; closes the sessions that are not shared."""

        async def ask() -> dict[str, Schemas]:
            servings = self.servings(servers)
            try:
                sessions = await asyncio.gather(*(one.started() for one in servings.values()))
                found = await asyncio.gather(*(session.schemas() for session in sessions))
            finally:
                await _close([s for name, s in servings.items() if name not in self.shared])
            return dict(zip(servings, found, strict=True))

        return contextvars.Context().run(self.loop.submit, ask).result()

    def servings(self, servers: Sequence[McpServer]) -> dict[str, "Serving[McpSession]"]:
        """Return the session of each server by name; shared sessions are reused."""
        return {one.name: self.shared.get(one.name) or _serving(one) for one in servers}


class McpEpisode:
    """The sessions of one episode, with all servers.

    Args:
        run: the loop and the shared sessions.
        servers: their settings.
        known: the schemas that were shown to the policy, by the server's name.
    """

    def __init__(
        self, run: _Run, servers: Sequence[McpServer], known: Mapping[str, Schemas]
    ) -> None:
        self._run, self._servers, self._known = run, servers, known
        self._servings = run.servings(servers)

    async def begin(self) -> dict[str, Function]:
        """Open the sessions, and return the tools by the names that were shown to the policy.

        Raises:
            EnvError: a server cannot be started, has ended, or has changed its tools.
        """
        sessions = await self._run.ask(self._open)
        return {
            server.prefix + tool: partial(self._call, session, tool)
            for server, session in zip(self._servers, sessions, strict=True)
            for tool in self._known[server.name]
        }

    async def close(self) -> None:
        """End the sessions that are not shared."""
        own = [s for name, s in self._servings.items() if name not in self._run.shared]
        if own:
            await self._run.ask(lambda: _close(own))

    async def _open(self) -> list["McpSession"]:
        sessions = await asyncio.gather(*(one.started() for one in self._servings.values()))
        found = await asyncio.gather(*(session.schemas() for session in sessions))
        for server, schemas in zip(self._servers, found, strict=True):
            _check_same(server, self._known[server.name], schemas)
        return list(sessions)

    async def _call(self, session: "McpSession", tool: str, /, **arguments: Any) -> Result:
        from abut.tools.mcp_session import content_of

        result = await self._run.ask(lambda: session.call(tool, arguments))
        return await THREADS.ask(lambda: content_of(result))


def _serving(server: McpServer) -> "Serving[McpSession]":
    from abut.tools.mcp_session import session_with

    return Serving(partial(session_with, server), server.title)


async def _close(servings: Sequence["Serving[McpSession]"]) -> None:
    """Close sessions, ignoring errors of servers that have ended: their users got those already."""
    ended = await asyncio.gather(*(one.close() for one in servings), return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException) and not isinstance(error, ConnectionError):
            raise error


def _close_run(loop: PoolLoop, shared: Sequence["Serving[McpSession]"]) -> None:
    loop.close(partial(_close, shared), lambda: None)


def _selected(server: McpServer, schemas: Schemas) -> Schemas:
    if server.tools is None:
        return schemas
    for tool in server.tools:
        if tool not in schemas:
            raise ValueError(
                f"{server.title} has no tool {tool!r}\nhint: its tools are {', '.join(schemas)}"
            )
    return {tool: schemas[tool] for tool in server.tools}


def _check_same(server: McpServer, known: Schemas, found: Schemas) -> None:
    """Refuse a session whose tools differ from those that were shown to the policy.

    Raises:
        EnvError: the tools differ; names them.
    """
    new = [] if server.tools is not None else [tool for tool in found if tool not in known]
    gone = [tool for tool in known if tool not in found]
    other = [tool for tool in known if tool in found and found[tool] != known[tool]]
    changes = ("new", new), ("missing", gone), ("with a new schema", other)
    said = "; ".join(f"{what}: {', '.join(tools)}" for what, tools in changes if tools)
    if said:
        raise EnvError(
            f"{server.title} has changed its tools since they were shown to the policy: {said}\n"
            "hint: abut lists the tools once, before the first batch; create the tool_env again, "
            "or name the tools to use: 'tools': […]",
            may_pass=False,
        )
