"""Servers as people install them: of the time and of git over stdio, and fastmcp over HTTP."""

import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp_server_time")
pytest.importorskip("mcp_server_git")
pytest.importorskip("fastmcp")
pytest.importorskip("transformers")

import mcp.types as types

import abut
from abut.errors import InvalidAction
from abut.samplers import ScriptedReplies
from abut.tools.mcp_session import content_of
from tests.kit.servers import mcp_http
from tests.kit.servers.free_port import free_port
from tests.kit.stage.rollouts import eventually

SCRIPTS = Path(sysconfig.get_path("scripts"))
TIME = {"command": [str(SCRIPTS / "mcp-server-time"), "--local-timezone=UTC"]}


def told(rollout: abut.Rollout) -> list[str]:
    return [m["content"] for m in rollout.messages if m["role"] == "tool"]


@contextmanager
def serving(port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, mcp_http.__file__, str(port)])

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/mcp", timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    try:
        assert eventually(answers, 300)
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_time_and_git_servers_answer_side_by_side(play: Any, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "new.txt").write_text("new")
    git = [str(SCRIPTS / "mcp-server-git"), "--repository", str(tmp_path)]
    env = abut.tool_env(
        mcp={"time": TIME, "git": {"command": git, "tools": ["git_status"], "session": "shared"}},
        reward=lambda messages: float("new.txt" in str(messages)),
        timeout_s=300,
    )
    names = [tool["function"]["name"] for tool in env.tools]
    assert names == ["get_current_time", "convert_time", "git_status"]
    at_noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    (rollout,) = play(
        env,
        ("convert_time", at_noon),
        ("get_current_time", {"timezone": "Nowhere/At_all"}),
        ("git_status", {"repo_path": str(tmp_path)}),
    )
    assert (rollout.error, rollout.reward) == (None, 1.0)
    tokyo, nowhere, status = told(rollout)
    assert "T21:00:00+09:00" in tokyo
    assert nowhere.startswith('{"error": ')
    assert "Nowhere/At_all" in nowhere
    assert "new.txt" in status


def test_fastmcp_over_http_its_death_and_its_return(play: Any) -> None:
    port = free_port()
    web = {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Key": "k"}, "session": "shared"}
    env = abut.tool_env(mcp={"web": web}, reward=lambda messages: 1.0, timeout_s=300)
    calls = ("divide", {"a": 6, "b": 2}), ("divide", {"a": 1, "b": 0}), ("whoami", {})
    with serving(port) as process:
        (rollout,) = play(env, *calls)
        assert rollout.error is None
        three, by_zero, who = told(rollout)
        assert three == "3.0"
        assert by_zero.startswith('{"error": ')
        assert who == f"{process.pid} k"
    (rollout,) = play(env, *calls)
    assert "the MCP server 'web'" in (rollout.error or "")
    with serving(port) as process:
        (rollout,) = play(env, *calls)
        assert (rollout.error, told(rollout)[2]) == (None, f"{process.pid} k")
    env.close()


def test_the_policy_sees_a_picture_that_a_server_sends() -> None:
    from tests.kit.training.vision import qwen3_vl

    port = free_port()
    web = {"url": f"http://127.0.0.1:{port}/mcp"}
    env = abut.tool_env(mcp={"web": web}, reward=lambda messages: 1.0, timeout_s=300)
    look = {"content": None, "tool_calls": [{"name": "picture", "arguments": {}}]}
    with serving(port):
        (rollout,) = abut.play(
            env,
            [{"prompt": "Begin."}],
            sampler=ScriptedReplies([look, "It is red."]),
            tokenizer=qwen3_vl().processor,
        )
    env.close()
    assert rollout.error is None
    (span,) = rollout.images
    assert span.image is abut.Image(mcp_http.RED_DOT)
    assert rollout.turns[0].end < span.start < rollout.turns[1].start


def test_a_picture_is_an_image_of_abut() -> None:
    import base64

    data = base64.b64encode(mcp_http.RED_DOT).decode()
    shown = types.CallToolResult(
        content=[
            types.TextContent(type="text", text="a dot"),
            types.ImageContent(type="image", data=data, mime_type="image/png"),
        ]
    )
    text, picture = content_of(shown)
    assert text == {"type": "text", "text": "a dot"}
    assert isinstance(picture, dict)
    assert picture["image"] is abut.Image(mcp_http.RED_DOT)
    broken = types.ImageContent(type="image", data="AAAA", mime_type="image/png")
    with pytest.raises(InvalidAction, match="an image that cannot be read"):
        content_of(types.CallToolResult(content=[broken]))
    sound = types.AudioContent(type="audio", data="AAAA", mime_type="audio/wav")
    with pytest.raises(InvalidAction, match="returned audio"):
        content_of(types.CallToolResult(content=[sound]))
