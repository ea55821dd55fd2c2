"""One session with a server of the Model Context Protocol, by the official package `mcp`.

Invariant: if a server has ended, the rollout fails with an `EnvError`, because it is not the
policy's fault. If a server refuses a call, the policy is shown an `InvalidAction`. The environment
of a child process has only PATH and the server's `env`. Neither errors nor logs show the values of
`env`, nor the password and query of a URL.
"""

import asyncio
import base64
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED, Implementation

from abut._native import __version__
from abut.address import Address, end_without_secrets
from abut.errors import EnvError, ImageError, InvalidAction, text_of
from abut.images import Image
from abut.tools.mcp_settings import McpServer
from abut.tools.toolbox import Result

START_S = 300.0
"""The most seconds for a server to start, or to list its tools; `npx` and `uvx` may download it
first."""
_MOST_TOOLS = 10_000
_LOG_BYTES = 2000
"""How much of the end of a server's log errors show."""
_CONNECT_S, _READ_S = 30.0, 300.0
"""Long, because a server may hold a response open while its tool works."""
_SESSION_GONE = "Session terminated"
"""The error of `mcp` for a 404 within a session, which means that the server has restarted."""
_NO_ANSWER = "Server returned an error response"
"""The error of `mcp` for an HTTP error whose body is not an error of the protocol."""


class McpSession:
    """A session with a server, and the tools of the session.

    Args:
        server: its settings.
        client: the open connection.
    """

    def __init__(self, server: McpServer, client: Any) -> None:
        self._server = server
        self._client = client
        self._timeout: asyncio.Timeout | None = None
        self._ended = asyncio.Event()
        self._log_end = ""

    async def schemas(self) -> dict[str, dict[str, Any]]:
        """Ask the server for its tools; return the JSON schema of each, by its name.

        Raises:
            EnvError: the server has ended, or cannot list its tools.
        """
        try:
            async with asyncio.timeout(START_S):
                return await self._schemas()
        except Exception as error:
            await self._lose()
            is_late = isinstance(error, TimeoutError)
            reason = f"it took longer than {START_S:g} s" if is_late else _told(error)
            raise EnvError(
                f"{self._server.title} could not list its tools: {reason}{self._log_end}"
            ) from error

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool, and return the server's result.

        Raises:
            InvalidAction: the server refuses the call, or its result does not match its schema.
            EnvError: the server has ended.
        """
        try:
            if not self._ended.is_set():
                return await self._client.call_tool(tool, dict(arguments))
            raise ConnectionError("the session has ended")
        except MCPError as error:
            gone = error.code == CONNECTION_CLOSED or error.message in (_SESSION_GONE, _NO_ANSWER)
            if not gone:
                raise InvalidAction(error.message) from error
            await self._lose()
            raise self._gone(error) from error
        except (RuntimeError, ValueError) as error:
            if not self._ended.is_set():  # of a result that breaks the server's own schema
                raise InvalidAction(str(error)) from error
            raise self._gone(error) from error
        except Exception as error:
            await self._lose()
            raise self._gone(error) from error

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Run the caller's block until it ends, or until the server has ended.

        Raises:
            ConnectionError: the server has ended.
        """
        try:
            async with asyncio.timeout(None) as self._timeout:
                yield
        except TimeoutError:
            raise ConnectionError(f"{self._server.title} has ended") from None

    def over(self, log_end: str) -> None:
        """Note that the session has ended, for callers that still use it."""
        self._log_end = log_end
        self._ended.set()

    async def _schemas(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        cursor: str | None = None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            for tool in page.tools:
                found[tool.name] = _schema(tool, self._server.prefix)
            if len(found) > _MOST_TOOLS:
                raise ValueError(f"it has more than {_MOST_TOOLS}")
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def _lose(self) -> None:
        """End the session, and wait until its process has ended."""
        if self._timeout is not None and not self._ended.is_set():
            self._timeout.reschedule(asyncio.get_running_loop().time())
        await self._ended.wait()

    def _gone(self, error: BaseException) -> EnvError:
        return EnvError(f"{self._server.title} is gone: {_told(error)}{self._log_end}")


@asynccontextmanager
async def session_with(server: McpServer) -> AsyncIterator[McpSession]:
    """Start a session; the server's process ends with it.

    Raises:
        EnvError: the server cannot be started or reached.
        ConnectionError: at the end of the session, if the server has ended before.
    """
    session: McpSession | None = None
    with tempfile.TemporaryFile() as log:
        try:
            async with AsyncExitStack() as stack:
                client = Client(
                    _transport(server, log),
                    client_info=Implementation(name="abut", version=__version__),
                    cache=None,
                )
                async with asyncio.timeout(START_S):
                    await stack.enter_async_context(client)
                session = McpSession(server, client)
                async with session.living():
                    yield session
        except EnvError:
            raise
        except TimeoutError:
            raise EnvError(
                f"{server.title} has not answered within {START_S:g} s{_end_of(log, server)}"
            ) from None
        except Exception as error:
            if isinstance(error, ConnectionError) and session is not None:
                raise
            if session is not None:
                raise ConnectionError(f"{server.title} is gone: {_told(error)}") from error
            raise EnvError(
                f"{server.title} cannot be used: {_told(error)}{_end_of(log, server)}\n"
                f"hint: {_start_hint(server)}"
            ) from error
        finally:
            if session is not None:
                session.over(_end_of(log, server))


def content_of(result: Any) -> Result:
    """Return a result as content for the policy; decodes images, so call it on a thread.

    Raises:
        InvalidAction: the result is an error, or has content that cannot be shown to the policy.
        MissingExtraError: the result has an image, and Pillow is not installed.
    """
    if result.is_error:
        texts = [block.text for block in result.content if block.type == "text"]
        raise InvalidAction("\n".join(texts) or "the tool failed without a reason")
    blocks = [_block(block) for block in result.content]
    if not blocks and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return blocks


def _block(block: Any) -> dict[str, Any]:
    if block.type == "text":
        return {"type": "text", "text": block.text}
    if block.type == "image":
        return _image(block.data)
    if block.type == "resource_link":
        return {"type": "text", "text": f"{block.name}: {block.uri}"}
    if block.type == "resource":
        resource = block.resource
        if (text := getattr(resource, "text", None)) is not None:
            return {"type": "text", "text": text}
        if (resource.mime_type or "").startswith("image/"):
            return _image(resource.blob)
        raise InvalidAction(f"the tool returned {resource.mime_type or 'binary data'}, not text")
    raise InvalidAction(f"the tool returned {block.type}, which cannot be shown")


def _image(data: str) -> dict[str, Any]:
    try:
        return {"type": "image", "image": Image(base64.b64decode(data))}
    except (ImageError, ValueError) as error:
        raise InvalidAction(f"the tool returned an image that cannot be read: {error}") from error


def _schema(tool: Any, prefix: str) -> dict[str, Any]:
    """Return a tool's schema in the form for chat templates."""
    return {
        "type": "function",
        "function": {
            "name": f"{prefix}{tool.name}",
            "description": tool.description or "",
            # Templates that write parameters one by one look for both.
            "parameters": {"type": "object", "properties": {}, **tool.input_schema},
        },
    }


def _transport(server: McpServer, log: Any) -> AbstractAsyncContextManager[Any]:
    if server.url:
        return _http(server)
    client: AbstractAsyncContextManager[Any] = stdio_client(_process(server), errlog=log)
    return client


@asynccontextmanager
async def _http(server: McpServer) -> AsyncIterator[Any]:
    timeout = httpx2.Timeout(_CONNECT_S, read=_READ_S)
    parts = urlsplit(server.url)
    if parts.query:
        _HIDDEN.queries.add(parts.query)
    # Not in the URL, which is logged.
    headers = {**server.headers, **Address.of(server.url.partition("?")[0]).headers}
    url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, follow_redirects=False) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


def _process(server: McpServer) -> StdioServerParameters:
    env = {"PATH": os.environ.get("PATH", os.defpath), **server.env}
    program, *arguments = server.command
    found = shutil.which(program, path=env["PATH"])
    if found is None:
        raise EnvError(
            f"{server.title}: the program {program!r} does not exist\n"
            "hint: give the program's path, or set PATH in env",
            may_pass=False,
        )
    # `mcp` adds HOME, USER and others to what it is given, and only another program can take them
    # away. On Windows no process starts without some of these.
    added = sorted(get_default_environment().keys() - env.keys())
    if added and sys.platform != "win32":
        unset = [part for name in added for part in ("-u", name)]
        found, arguments = shutil.which("env") or "/usr/bin/env", [*unset, found, *arguments]
    return StdioServerParameters(command=found, args=arguments, env=env)


def _start_hint(server: McpServer) -> str:
    if server.url:
        return "check that the server is running and speaks streamable HTTP at this path"
    return (
        "the server's process gets only PATH and the variables in env: "
        f"mcp={{{server.name!r}: {{…, 'env': {{'NAME': …}}}}}}"
    )


def _told(error: BaseException) -> str:
    """Return the text of an error; of a group of errors, the text of the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return text_of(error)


def _end_of(log: Any, server: McpServer) -> str:
    """Return the end of a process's stderr, without the values of `env`, for an error."""
    text = end_without_secrets(log, _LOG_BYTES, server.env).strip()
    return f"\nthe end of its log:\n{text}" if text else ""


class _HidesQueries(logging.Filter):
    """Hides the queries of servers' URLs, which may be keys: `httpx2` logs the URL of each request.

    Attributes:
        queries: to hide.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queries: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace each query in a record."""
        text = record.getMessage()
        if found := [query for query in self.queries if query in text]:
            for query in found:
                text = text.replace(query, "…")
            record.msg, record.args = text, None
        return True


_HIDDEN = _HidesQueries()
for _name in ("httpx2", "mcp.client.streamable_http"):
    logging.getLogger(_name).addFilter(_HIDDEN)
