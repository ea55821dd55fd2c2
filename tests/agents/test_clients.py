"""Where clients are sent: addresses, variables and options of an endpoint."""

import json
import pickle
import tomllib
from typing import Any

import pytest

from abut.agents import Endpoint, agent
from abut.gateway import Gateway
from tests.kit.stage.agents import Client, play_agents, says, serving, user
from tests.kit.stage.rollouts import Stage

PLAIN = Endpoint("http://h:1/r/a.0/v1", "abut-key", "policy", "a.0", max_context_tokens=65536)
JUDGE = PLAIN.named("judge", train=False)
KINDS = ("claude-code", "codex", "gemini-cli", "openai", "anthropic", "google")


def test_the_addresses_of_the_protocols() -> None:
    assert PLAIN.anthropic_url == PLAIN.gemini_url == "http://h:1/r/a.0"
    assert JUDGE.anthropic_url == JUDGE.gemini_url == "http://h:1/r/a.0/as/judge/untrained"


@pytest.mark.parametrize("endpoint", [PLAIN, JUDGE], ids=["plain", "named"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_is_sent_to_the_endpoint_with_its_key(kind: Any, endpoint: Endpoint) -> None:
    variables = endpoint.env(kind)
    addresses = {name: value for name, value in variables.items() if name.endswith("_URL")}
    keys = {name: value for name, value in variables.items() if name.endswith("_KEY")}
    root = endpoint.base_url.removesuffix("/v1")
    assert (
        addresses
        == {
            "claude-code": {"ANTHROPIC_BASE_URL": root},
            "codex": {},
            "gemini-cli": {"GOOGLE_GEMINI_BASE_URL": root},
            "openai": {"OPENAI_BASE_URL": f"{root}/v1"},
            "anthropic": {"ANTHROPIC_BASE_URL": root},
            "google": {"GOOGLE_GEMINI_BASE_URL": root},
        }[kind]
    )
    assert set(keys.values()) == {"abut-key"}
    assert len(keys) == 1


def test_telemetry_is_off() -> None:
    assert PLAIN.env("claude-code")["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert PLAIN.env("claude-code")["DISABLE_TELEMETRY"] == "1"
    assert PLAIN.env("openai")["OPENAI_AGENTS_DISABLE_TRACING"] == "1"
    assert PLAIN.env("gemini-cli")["GEMINI_TELEMETRY_ENABLED"] == "false"


def test_an_unknown_client_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="'claude-code', 'codex', 'gemini-cli', 'openai'"
    ) as raised:
        PLAIN.env("claude")  # type: ignore[arg-type]
    assert "hint: for any other client, use endpoint.base_url" in str(raised.value)


@pytest.mark.parametrize("base_url", ["http://h:1/r/a.0/v1", 'http://h:1/"quoted"\\/v1'])
def test_the_options_of_codex_are_its_configuration(base_url: str) -> None:
    args = Endpoint(base_url, "k", "policy", "a.0", max_context_tokens=65536).codex_args()
    assert args[::2] == ["-c"] * (len(args) // 2)
    # `-c key=value` is one line of config.toml, with a dotted key.
    config = tomllib.loads("\n".join(args[1::2]))
    provider = config["model_providers"][config["model_provider"]]
    assert provider["base_url"] == base_url
    assert provider["wire_api"] == "responses"
    assert provider["env_key"] in PLAIN.env("codex")
    assert config["model_context_window"] == 65536
    assert config["analytics"] == config["feedback"] == {"enabled": False}
    assert config["otel"] == {"exporter": "none"}


def test_a_context_without_a_known_limit_is_not_told_to_codex() -> None:
    args = Endpoint("http://h:1/v1", "k", "policy", "a.0").codex_args()
    assert "model_context_window" not in json.dumps(args)


def test_an_endpoint_knows_the_context_of_its_run(stage: Stage, hf_tokenizer: Any) -> None:
    seen: list[Endpoint] = []

    @agent
    async def looks(endpoint: Endpoint) -> float:
        seen.append(pickle.loads(pickle.dumps(endpoint)))
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
        return 1.0

    assert play_agents(stage, looks, context=500).one.error is None
    assert seen[0].max_context_tokens == seen[0].named("a").max_context_tokens == 500
    config = {"max_context_tokens": 300}
    with serving(says(stage), hf_tokenizer, config=config) as gateway:
        assert gateway.endpoint("one").max_context_tokens == 300
    assert Gateway().endpoint("one").max_context_tokens is None
