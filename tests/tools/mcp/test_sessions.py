"""Sessions with servers over stdio: whose they are, when they end, and what a dead server costs."""

import http.server
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("mcp")
pytest.importorskip("transformers")

import abut
from abut.errors import EnvError
from abut.tools import mcp_session
from abut.tools.tool_env import ToolEnv
from tests.kit.servers import mcp_stdio
from tests.kit.stage.rollouts import eventually
from tests.kit.training.example_run import blocks_of

SERVER = [sys.executable, "-S", mcp_stdio.__file__]


def env_of(*, functions: Any = (), reward: Any = lambda messages: 1.0, **settings: Any) -> Any:
    servers = {"small": {"command": SERVER, **settings}}
    return abut.tool_env(functions, mcp=servers, reward=reward, timeout_s=300)


def told(rollout: abut.Rollout) -> list[str]:
    return [m["content"] for m in rollout.messages if m["role"] == "tool"]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_rollout_has_a_session_which_ends_with_it(play: Any) -> None:
    rollouts = play(env_of(), ("count", {}), ("count", {}), k=2)
    assert [r.error for r in rollouts] == [None, None]
    said = [[text.split(" in ") for text in told(r)] for r in rollouts]
    assert [[count for count, _ in one] for one in said] == [["1", "2"], ["1", "2"]]
    pids = {int(pid) for one in said for _, pid in one}
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


def test_a_shared_session_is_one_for_all_and_ends_with_the_run(play: Any) -> None:
    env = env_of(session="shared")
    first = play(env, ("count", {}), k=2)
    second = play(env, ("count", {}))
    said = [told(r)[0].split(" in ") for r in first]
    assert sorted(count for count, _ in said) == ["1", "2"]
    assert len({pid for _, pid in said}) == 1
    assert told(second[0])[0].startswith("1 in ")
    pids = [int(told(r)[0].split(" in ")[1]) for r in (first[0], second[0])]
    assert eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
def test_a_process_gets_path_and_env_alone(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the parent")
    monkeypatch.setenv("HOME", "/of-the-parent")
    (rollout,) = play(env_of(env={"TOKEN": "t"}), ("environment", {}))
    assert told(rollout) == ["PATH TOKEN"]


def test_what_the_server_refuses_is_told_and_counted(
    play: Any, caplog: pytest.LogCaptureFixture
) -> None:
    calls = ("fail", {"why": "no disk"}), ("refuse", {"why": "bad why"}), ("describe", {})
    (rollout,) = play(env_of(), *calls)
    assert told(rollout) == ['{"error": "no disk"}', '{"error": "bad why"}', '{"sum": 3}']
    assert (rollout.error, rollout.reward) == (None, 1.0)
    assert not [r for r in caplog.records if r.name == "abut.tools.toolbox"]


@pytest.mark.parametrize("session", ["rollout", "shared"])
def test_a_dead_server_costs_one_attempt(play: Any, tmp_path: Path, session: str) -> None:
    flag = tmp_path / "died"
    env = env_of(session=session)
    (rollout,) = play(env, ("count", {}), ("die", {"once": str(flag)}), retries=1)
    assert (rollout.error, rollout.attempts) == (None, 2)
    assert told(rollout)[0].startswith("1 in ")
    assert told(rollout)[1] == "alive"


def test_a_dead_server_fails_its_own_rollout_with_the_end_of_its_log(
    play: Any, tmp_path: Path
) -> None:
    rollouts = play(env_of(), ("die", {"once": str(tmp_path / "died")}), k=2)
    failed = [r for r in rollouts if r.error]
    assert len(failed) == 1
    assert "the MCP server 'small'" in failed[0].error
    assert failed[0].error.endswith("the end of its log:\nthe last words")


def test_a_server_with_other_tools_than_shown_is_an_error(play: Any, tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text("count fail")
    env = env_of(command=[*SERVER, str(names)])
    chosen = env_of(command=[*SERVER, str(names)], tools=["count"])
    assert [tool["function"]["name"] for tool in env.tools] == ["count", "fail"]
    assert [tool["function"]["name"] for tool in chosen.tools] == ["count"]
    names.write_text("count describe")
    (rollout,) = play(env, ("count", {}), retries=3)
    assert (
        "changed its tools since they were shown to the policy: new: describe; missing: fail"
        in (rollout.error or "")
    )
    assert rollout.attempts == 1
    (rollout,) = play(chosen, ("count", {}))
    assert rollout.error is None


@pytest.mark.parametrize(
    ("word", "reason"), [("silent", "it took longer than 2 s"), ("endless", "more than 10000")]
)
def test_a_server_that_never_ends_its_list_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, reason: str
) -> None:
    monkeypatch.setattr(mcp_session, "START_S", 2.0 if word == "silent" else 300.0)
    (tmp_path / "names").write_text(word)
    with pytest.raises(EnvError, match=f"could not list its tools: .*{reason}"):
        _ = env_of(command=[*SERVER, str(tmp_path / "names")]).tools


@pytest.mark.parametrize("padding", [0, 1990, 2100])
def test_a_value_of_env_is_not_in_the_end_of_the_log(
    play: Any, tmp_path: Path, padding: int
) -> None:
    env = env_of(env={"TOKEN": f"sk-secret-{'x' * padding}"})
    (rollout,) = play(env, ("die", {"once": str(tmp_path / "died")}))
    error = rollout.error or ""
    assert "is gone" in error
    assert error.endswith("the end of its log:\nthe last words <TOKEN>") == (padding == 0)
    assert "sk-secret" not in error
    assert "xx" not in error


class Refusing(http.server.BaseHTTPRequestHandler):
    """Notes what it is asked, and refuses it."""

    asked: ClassVar[list[tuple[str, Any]]] = []

    def do_POST(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_the_password_and_the_query_of_a_url_are_sent_and_never_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://me:hunter22@127.0.0.1:{server.server_port}/mcp/?token=sesame44"
        with pytest.raises(EnvError) as raised:
            _ = abut.tool_env(mcp={"web": {"url": url}}).tools
        server.shutdown()
    assert Refusing.asked[0] == ("/mcp/?token=sesame44", "Basic bWU6aHVudGVyMjI=")
    said = f"{raised.value}{caplog.text}"
    assert "HTTP Request: POST" in said
    assert "hunter22" not in said
    assert "sesame44" not in said


def test_two_tools_of_one_name_need_a_prefix() -> None:
    def count() -> int:
        """Count."""
        return 1

    with pytest.raises(
        ValueError, match=r"two tools have the name 'count': one from the functions"
    ):
        _ = env_of(functions=[count]).tools
    with_prefix = env_of(functions=[count], prefix="small_", tools=["count"])
    assert [t["function"]["name"] for t in with_prefix.tools] == ["count", "small_count"]
    with pytest.raises(ValueError, match=r"has no tool 'nothing'\nhint: its tools are count, "):
        _ = env_of(tools=["nothing"]).tools


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(EnvError, match="the program 'no-such-program' does not exist"):
        _ = env_of(command="no-such-program").tools
    broken = [sys.executable, "-S", "-c", "raise SystemExit('no licence')"]
    with pytest.raises(EnvError, match=r"(?s)cannot be used: .*the end of its log:\nno licence\n"):
        _ = env_of(command=broken).tools
    with pytest.raises(EnvError, match=r"\(http://127.0.0.1:9/mcp\) cannot be used: "):
        _ = abut.tool_env(
            mcp={"web": {"url": "http://127.0.0.1:9/mcp?key=secret"}}, reward=len
        ).tools


def test_the_settings_of_the_page_are_taken() -> None:
    (block,) = (block for block in blocks_of("how-to/tools.md") if "mcp={" in block)
    example: dict[str, Any] = {}
    exec(block, example)
    assert isinstance(example["env"], ToolEnv)
