"""Checks the settings of servers of the Model Context Protocol.

Invariant: an invalid setting is a `ValueError` before any server is started. Errors do not repeat
values of `env` or `headers`.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from abut.address import Address, check_one_authorization, checked_headers, shown

_KEYS = ("command", "url", "session", "tools", "prefix", "env", "headers")
_SESSIONS = ("rollout", "shared")
_PREFIX = re.compile("[A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class McpServer:
    """The settings of one server; it has either a command or a URL."""

    name: str
    command: tuple[str, ...] = ()
    """The program and its arguments."""
    url: str = field(default="", repr=False)
    is_shared: bool = False
    """True if all rollouts share one session."""
    tools: tuple[str, ...] | None = None
    """The tools that the policy gets, by the server's names; None: all."""
    prefix: str = ""
    """Added before the names of its tools."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def title(self) -> str:
        """The server's name in errors, with its address, but without password and query."""
        where = shown(self.url.partition("?")[0]) if self.url else shlex.join(self.command[:1])
        return f"the MCP server {self.name!r} ({where})"


def checked_servers(mcp: Mapping[str, Mapping[str, Any]]) -> tuple[McpServer, ...]:
    """Return the servers of `tool_env(mcp=…)`.

    Raises:
        ValueError: a setting is invalid; names it and the values that are possible.
    """
    if not isinstance(mcp, Mapping) or not all(isinstance(name, str) for name in mcp):
        raise ValueError(
            f"mcp={type(mcp).__name__}: must be a dict from names to servers\n"
            'hint: mcp={"time": {"command": ["mcp-server-time"]}}'
        )
    return tuple(_server(name, settings) for name, settings in mcp.items())


def _server(name: str, settings: Any) -> McpServer:
    def refuse(what: str, hint: str) -> NoReturn:
        raise ValueError(f"mcp[{name!r}]: {what}\nhint: {hint}")

    if not isinstance(settings, Mapping):
        refuse(f"must be a dict, got {type(settings).__name__}", '{"command": …} or {"url": …}')
    for key in settings:
        if key == "args":
            refuse("unknown key 'args'", 'put them into "command": ["program", "argument", …]')
        if key not in _KEYS:
            refuse(f"unknown key {key!r}", f"the keys are {', '.join(_KEYS)}")
    if ("command" in settings) == ("url" in settings):
        both = "both command and url" if "url" in settings else "neither command nor url"
        refuse(
            f"has {both}",
            "give command to start the server as a process, or the url of a running server",
        )
    for key, other in (("env", "command"), ("headers", "url")):
        if key in settings and other not in settings:
            refuse(f"{key} without {other}", f"{key} is only for a server with a {other}")
        value = settings.get(key, {})
        if not isinstance(value, Mapping) or not _are_texts([*value, *value.values()]):
            refuse(f"{key} must be a dict from strings to strings", f'{key}={{"NAME": "value"}}')
    session = settings.get("session", "rollout")
    if session not in _SESSIONS:
        refuse(
            f"session={session!r}: must be 'rollout' or 'shared'",
            "'rollout' starts a session for each rollout; 'shared' uses one for all",
        )
    prefix = settings.get("prefix", "")
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        refuse(
            f"prefix={prefix!r}: not allowed in the name of a tool",
            "use letters, digits, '_', '-' and '.', such as 'files_'",
        )
    tools = settings.get("tools")
    if tools is not None and not (_is_list(tools) and tools):
        refuse(f"tools={tools!r}: must be a list of names", "leave it out to get all tools")
    url = settings.get("url", "")
    headers = dict(settings.get("headers", {}))
    if url:
        _check_url(f"mcp[{name!r}]", url, headers)
    command = settings.get("command", ())
    if isinstance(command, str):
        command = shlex.split(command, posix=sys.platform != "win32")
    if not url and not (_is_list(command) and command):
        refuse("command must be a string or a list of strings", '"command": ["mcp-server-time"]')
    return McpServer(
        name,
        command=tuple(command),
        url=url,
        is_shared=session == "shared",
        tools=None if tools is None else tuple(tools),
        prefix=prefix,
        env=dict(settings.get("env", {})),
        headers=headers,
    )


def _check_url(name: str, url: Any, headers: Mapping[str, str]) -> None:
    if not isinstance(url, str):
        raise ValueError(
            f"{name}: url must be a string, got {type(url).__name__}\nhint: 'https://…'"
        )
    try:
        address = Address.of(url.partition("?")[0])
    except ValueError as error:
        raise ValueError(f"{name}: url={error}") from None
    check_one_authorization(name, address, checked_headers(name, headers))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and _are_texts(value)


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
