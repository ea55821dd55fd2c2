"""Which server plays a row: as the heads of 0.4.0 and 0.7.0 tell it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from abut.errors import EnvError
from abut.nemo_gym.head import Head
from abut.nemo_gym.servers import Servers
from tests.kit.servers.fake_gym import FakeGym, one_turn

AGENT = "responses_api_agents"


def instance(name: str, kind: str = AGENT, port: int = 1) -> dict[str, Any]:
    return {"process_name": name, "server_type": kind, "url": f"http://gym:{port}"}


def agent_config(resources: str = "tools", model: str = "policy_model") -> dict[str, Any]:
    settings = {"resources_server": {"name": resources}, "model_server": {"name": model}}
    return {AGENT: {"simple_agent": settings}}


def environment_config(kind: str, agent: str | None) -> dict[str, Any]:
    settings = {} if agent is None else {"agent_server": {"name": agent}}
    return {"environment_servers": {kind: settings}}


@pytest.fixture(params=["0.4.0", "0.7.0"])
def told(request: pytest.FixtureRequest, runs: Path) -> Servers:
    text = (runs / request.param / "head_discovery.json").read_text(encoding="utf-8")
    said = json.loads(text)
    return Servers(said["/server_instances"], yaml.safe_load(said["/global_config_dict_yaml"]))


def test_agents_of_a_recorded_head_play_their_rows(told: Servers) -> None:
    for name in ("example_multi_step", "example_session_state_mgmt", "workplace_assistant"):
        agent = f"{name}_simple_agent"
        assert agent in told.agents
        played = told.of(told.agent_of({"agent_ref": {"name": agent}}))
        assert played.agent == agent
        assert played.environment is None  # a relay before it changes nothing
        assert not played.is_typed
        source = "workplace_assistant" if name.startswith("work") else f"{name}_resources_server"
        assert told.agent_of({"task_source": source}) == agent


def test_a_model_servers_settings_are_resolved(told: Servers) -> None:
    model = told.model_of("workplace_assistant_simple_agent")
    assert model is not None
    assert (model.name, model.kind) == ("policy_model", "vllm_model")
    assert model.base_urls == ["http://127.0.0.1:18080/v1"]
    assert model.settings["return_token_id_information"] is True
    assert model.settings["api_key"] == "none"


def test_an_environment_server_gets_its_agents_rows() -> None:
    servers = Servers(
        [instance("a", port=1), instance("env", "environment_servers", 2)],
        {"a": agent_config(), "env": environment_config("single_agent_turn_legacy", "a")},
    )
    played = servers.of("a")
    assert (played.agent, played.url, played.environment) == ("a", "http://gym:2", "env")
    assert not played.is_typed
    assert servers.agent_of({"agent_ref": {"name": "env"}}) == "a"


def test_the_relay_of_an_agent_is_passed_by() -> None:
    servers = Servers(
        [instance("a", port=1), instance("env", "environment_servers", 2)],
        {"a": agent_config(), "env": environment_config("legacy_agent", "a")},
    )
    assert servers.of("env").url == servers.of("a").url == "http://gym:1"


def test_a_typed_environment_server_of_several_agents_is_one() -> None:
    servers = Servers(
        [instance("talk", "environment_servers", 2)],
        {
            "talk": environment_config("single_agent_turn", None),
            "environment_server_routes": {"dialogue:hard": "talk"},
        },
    )
    row = {"task_id": {"taskset": "dialogue:hard", "task_id": "0"}, "task_input": {}}
    assert servers.of(servers.agent_of(row)).is_typed
    row["task_id"] = {"taskset": "talk:easy", "task_id": "0"}
    assert servers.agent_of(row) == "talk"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"agent_ref": {"name": "c"}}, "there is no agent 'c'; the agents are: a, b"),
        (
            {"task_source": "tools"},
            "task_source 'tools' has several agents: a, b\n"
            "hint: choose one with agent=, or with agent_ref in the rows",
        ),
        (
            {"task_source": "x"},
            "task_source 'x' is neither an agent nor the resources server of one; the agents "
            "are: a, b",
        ),
        (
            {},
            "the row names no agent: it has neither agent_ref nor task_source; the agents are: "
            "a, b",
        ),
    ],
)
def test_a_row_without_one_agent_is_an_error_that_lists_them(row: Any, said: str) -> None:
    servers = Servers([instance("b"), instance("a")], {"a": agent_config(), "b": agent_config()})
    with pytest.raises(ValueError, match=r"the agents are|several") as raised:
        servers.agent_of(row)
    assert str(raised.value) == said


def test_a_default_is_for_rows_that_name_none() -> None:
    servers = Servers([instance("b"), instance("a")], {"a": agent_config(), "b": agent_config()})
    assert servers.agent_of({}, "b") == "b"
    assert servers.agent_of({"agent_ref": {"name": "a"}}, "b") == "a"
    assert servers.agent_of({"task_source": "tools"}, "b") == "b"


def test_references_that_the_configuration_does_not_say_stay() -> None:
    model = {"responses_api_models": {"vllm_model": {"base_url": "http://${host}:${oc.env:PORT}"}}}
    servers = Servers([instance("a")], {"a": agent_config(), "policy_model": model, "host": "h"})
    found = servers.model_of("a")
    assert found is not None
    assert found.base_urls == ["http://h:${oc.env:PORT}"]


def test_a_head_is_asked_again_after_something_was_not_where_it_was() -> None:
    with FakeGym({"a": one_turn}) as gym:
        head = Head(gym.url)
        before = head.servers().of("a").url
        gym.move()
        assert head.servers().of("a").url == before
        head.forget()
        assert head.servers().of("a").url != before


def test_a_head_that_is_gone_leaves_what_it_told(caplog: pytest.LogCaptureFixture) -> None:
    with FakeGym({"a": one_turn}) as gym:
        head = Head(gym.url)
        before = head.servers()
        gym.head_is_gone = True
        head.forget()
        assert head.servers() is before
        assert "still using the servers that the head named" in caplog.text
        with pytest.raises(EnvError, match="no NeMo Gym head answers at http://127"):
            Head(gym.url).servers()


def test_what_is_no_head_says_so() -> None:
    with (
        FakeGym({"a": one_turn}, config={"a": "text"}, instances=[]) as gym,
        pytest.raises(EnvError, match="no NeMo Gym head answers"),
    ):
        Head(f"{gym.url}/at/a").servers()


def test_the_key_of_the_configuration_is_in_no_message(caplog: pytest.LogCaptureFixture) -> None:
    with FakeGym({"a": one_turn}, key="a key that is secret") as gym:
        head = Head(gym.url)
        said = [repr(head.servers()), repr(head), caplog.text]
    assert not any("secret" in text for text in said)
