"""Real environment servers of 0.7.0 before an agent: rows and episodes, typed and flat."""

import json
from pathlib import Path
from typing import Any

import pytest

from abut.gateway import Gateway
from abut.nemo_gym import NemoGym
from tests.kit.stage.agents import RUN, check_tree, play_agents
from tests.kit.stage.nemo_gym import Plays, gym_servers, versions
from tests.kit.stage.rollouts import Recording

VERSION = "0.7.0"
pytestmark = [
    pytest.mark.nemo_gym,
    pytest.mark.skipif(
        bool(versions()) and VERSION not in versions(), reason="0.7.0 needs a Python 3.13"
    ),
]

CONFIGS = "resources_servers/example_single_tool_call/configs"
AGENT = "example_single_tool_call_session_agent"
FLAT = [f"{CONFIGS}/example_single_tool_call_single_agent_turn.yaml"]
RELAY = [f"{CONFIGS}/example_single_tool_call.yaml"]
TYPED = {
    "typed_turn": {
        "environment_servers": {
            "single_agent_turn": {
                "entrypoint": "app.py",
                "resources_server": {
                    "type": "resources_servers",
                    "name": "example_single_tool_call",
                },
                "agent_server": {"type": "responses_api_agents", "name": AGENT},
                "resources_tool_transports": ["direct_http"],
                "max_concurrent_episodes": None,
                "queue_timeout_seconds": None,
                "default_episode_timeout_seconds": 600,
                "cleanup_timeout_seconds": 60,
            }
        }
    }
}


@pytest.mark.parametrize(
    ("configs", "asked", "agent", "posted"),
    [
        (FLAT, {}, AGENT, "single_agent_turn_legacy"),
        (FLAT, {"overrides": TYPED}, AGENT, "single_agent_turn"),
        (RELAY, {}, "example_single_tool_call_simple_agent", None),
    ],
    ids=["flat", "typed", "relay"],
)
def test_rows_are_played_by_what_stands_before_their_agent(
    stage: Any,
    tmp_path: Path,
    configs: list[str],
    asked: dict[str, Any],
    agent: str,
    posted: str | None,
) -> None:
    pytest.importorskip("datasets")
    gateway = Gateway()
    gateway.start()
    with gym_servers(
        VERSION,
        gateway.base_url,
        gateway.key,
        tmp_path / "gym",
        environments=(),
        more_configs=configs,
        **asked,
    ) as servers:
        gym = NemoGym(servers.head_url)
        played = gym._head.servers().of(agent)
        assert played.kind == posted
        path = servers.file("rows", servers.rows("example_single_tool_call"))
        rows = [dict(row) for row in gym.dataset(path, agent=agent)]
        whole = json.loads(rows[0]["nemo_gym_row"])
        if posted is not None:  # a task, as Gym's own tools write one
            task = {
                "task_id": {"taskset": "example_single_tool_call", "task_id": "0"},
                "task_input": {**whole, "task_data": {}},
            }
            rows.append({**rows[0], "nemo_gym_row": json.dumps(task)})
        sampler = Recording(Plays(stage.tokenizer, stage.processor.close_token_id))
        try:
            rollouts = play_agents(
                stage,
                *[gym] * len(rows),
                sampler=sampler,
                gateway=gateway,
                columns=rows,
                retries=0,
            ).rollouts
        finally:
            gateway.stop()
    assert len(rollouts) >= 3
    for rollout in rollouts:
        assert rollout.extras["nemo_gym_outcome"] == "ok", rollout.error
        assert rollout.reward == 1.0
        own = [c for c in sampler.calls if c[0].rollout_id.startswith(f"{rollout.rollout_id}.")]
        assert len(own) == 2
        assert RUN in own[0][0].rollout_id
        check_tree(rollout, own)
