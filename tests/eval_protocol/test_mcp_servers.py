"""Processors that start or rent a tool server for a rollout: MCP-Gym's and Klavis'."""

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("eval_protocol")

from eval_protocol.pytest.default_mcp_gym_rollout_processor import MCPServerManager

from abut.eval_protocol import eval_test
from tests.kit.servers.ep_server import openenv_server
from tests.kit.stage.evals import call_text, last_user, play_test
from tests.kit.stage.rollouts import Stage

SERVERS = str(Path(__file__).parent / "servers")


@pytest.fixture
def servers_have_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package waits for fifteen seconds, and writes its log where it is."""
    wait = MCPServerManager._wait_for_server_ready
    monkeypatch.setattr(
        MCPServerManager, "_wait_for_server_ready", lambda self, timeout: wait(self, timeout=240)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )


def counts(text: str) -> str:
    """Adds five until there are ten."""
    said = last_user(text)
    return "That is ten." if '"total": 10' in said else call_text("add", number=5)


@pytest.mark.usefixtures("servers_have_time")
@pytest.mark.parametrize("name", ["test_counts", "test_counts_with_others"])
def test_a_gym_is_played_on_its_server(stage: Stage, name: str) -> None:
    test = eval_test(f"ep_own.gym:{name}", log=None)
    batch = play_test(stage, test, counts, generations=1, retries=0)
    MCPServerManager._cleanup_all_servers()  # a shared one lives as long as the process
    assert [rollout.error for rollout in batch.rollouts] == [None] * 2
    assert batch.rewards == [1.0] * 2
    for rollout in batch.rollouts:
        # What it is told at first, twice a call and its result, the last word.
        assert (len(rollout.turns), rollout.branches) == (3, [])
        assert [m["role"] for m in rollout.messages[:2]] == ["system", "user"]
        assert rollout.messages[1]["content"] == "Now: {'total': 0}. Add up to ten."
    assert MCPServerManager._active_servers == []


def test_a_sandbox_is_rented_filled_dumped_and_released(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def policy(text: str) -> str:
        asked = last_user(text).strip() == "Create the project New."
        return call_text("create_project", name="New") if asked else "It is there."

    with openenv_server("klavis_api:app", SERVERS) as url:
        monkeypatch.setenv("KLAVIS_URL", url)
        test = eval_test("ep_own.sandbox", log=None)
        batch = play_test(stage, test, policy, generations=4, retries=0)
        with urllib.request.urlopen(f"{url}/health") as reply:
            left: dict[str, Any] = json.load(reply)
    assert [rollout.error for rollout in batch.rollouts] == [None] * 4
    assert batch.rewards == [1.0] * 4
    assert [len(rollout.turns) for rollout in batch.rollouts] == [2] * 4
    assert left == {"live": 0, "released": 4}
