"""The settings of MCP servers: a wrong one is an error at once, without the package `mcp`."""

from typing import Any

import pytest

from abut.tools.mcp_settings import McpServer, checked_servers


def test_settings_are_taken() -> None:
    files, web = checked_servers(
        {
            "files": {"command": "server --root '/a b'", "env": {"TOKEN": "t"}, "prefix": "files_"},
            "web": {
                "url": "https://host/mcp/?key=secret",
                "session": "shared",
                "tools": ["search"],
                "headers": {"X-Key": "k"},
            },
        }
    )
    assert files == McpServer(
        "files", command=("server", "--root", "/a b"), env={"TOKEN": "t"}, prefix="files_"
    )
    assert (web.is_shared, web.tools, web.command) == (True, ("search",), ())
    assert web.title == "the MCP server 'web' (https://host/mcp/)"
    assert files.title == "the MCP server 'files' (server)"
    assert "secret" not in repr(web)
    assert "'k'" not in repr(web)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"command": "a", "url": "http://h"}, "has both command and url\nhint: "),
        ({}, "has neither command nor url\nhint: "),
        ({"command": "a", "args": ["b"]}, "unknown key 'args'\nhint: put them into \"command\": ["),
        ({"command": "a", "cwd": "/"}, "unknown key 'cwd'\nhint: the keys are command, url, "),
        (
            {"command": "a", "session": "batch"},
            "session='batch': must be 'rollout' or 'shared'\nhint: ",
        ),
        ({"command": ""}, "command must be a string or a list of strings\nhint: "),
        ({"command": ["a", 1]}, "command must be a string or a list of strings\nhint: "),
        ({"command": "a", "headers": {}}, "headers without url\nhint: "),
        ({"url": "http://h", "env": {}}, "env without command\nhint: "),
        ({"command": "a", "env": {"A": 1}}, "env must be a dict from strings to strings\nhint: "),
        (
            {"command": "a", "prefix": "a b"},
            "prefix='a b': not allowed in the name of a tool\nhint: use letters",
        ),
        ({"command": "a", "tools": "one"}, "tools='one': must be a list of names\nhint: "),
        ({"command": "a", "tools": []}, "tools=[]: must be a list of names\nhint: "),
        ({"url": "host/mcp"}, "url='host/mcp': an address starts with http://"),
        ({"url": 8000}, "url must be a string, got int\nhint: "),
        ({"url": "http://h", "headers": {"K": "a\nb"}}, "the header 'K' cannot be sent"),
        ("mcp-server", "must be a dict, got str\nhint: "),
    ],
)
def test_a_wrong_setting_is_named(settings: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r"^mcp\['x'\]: ") as raised:
        checked_servers({"x": settings})
    assert str(raised.value).startswith(f"mcp['x']: {said}")


def test_servers_have_names() -> None:
    with pytest.raises(ValueError, match="must be a dict from names to servers\nhint: "):
        checked_servers([{"command": "a"}])  # type: ignore[arg-type]


def test_a_password_is_never_repeated() -> None:
    with pytest.raises(ValueError, match="and you also pass an Authorization header") as raised:
        checked_servers({"x": {"url": "http://u:secret@h", "headers": {"Authorization": "Basic"}}})
    assert "secret" not in str(raised.value)
