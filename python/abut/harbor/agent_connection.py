"""Connects an agent of Harbor to the endpoint of a rollout.

Invariant: only a rollout's agent receives its key. An agent that runs in this process gets the key
as an argument, so no command in the environment has it. An agent that is installed in the
environment gets it as a variable of its own commands, which the verifier's commands do not have.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

from abut.agents.clients import KNOWN_MODELS, ClientKind, codex_settings
from abut.agents.protocol import Endpoint

Kind: TypeAlias = Literal["terminus-2", "claude-code", "codex", "installed", "own"]

_POLICY = "openai/policy"
"""The policy's model name in Harbor, where the part before the slash selects the protocol."""
_MODELS: Mapping[Kind, str] = {
    "claude-code": f"anthropic/{KNOWN_MODELS['claude-code']}",
    "codex": f"openai/{KNOWN_MODELS['codex']}",
}
_EXAMPLE = Endpoint("http://gateway/r/rollout.0/v1", "abut-key", "policy", "rollout.0")


@dataclass(frozen=True)
class AgentConnection:
    """An agent of Harbor, and the way it gets the address of its endpoint.

    Attributes:
        name: Harbor's name of the agent, or the import path of its class.
        kwargs: the user's arguments for the agent.
        kind: how the agent is connected.
    """

    name: str
    kwargs: Mapping[str, Any]
    kind: Kind

    @classmethod
    def of(cls, name: str, kwargs: Mapping[str, Any]) -> "AgentConnection":
        """Check that an agent can be connected, and return its connection.

        Args:
            name: Harbor's name of the agent, or `module:Class`.
            kwargs: the agent's arguments; `model_name` is one of them.

        Raises:
            ValueError: there is no such agent, an argument is not one of the agent's, or the agent
                cannot be pointed at an endpoint.
        """
        from harbor.agents.factory import AgentFactory
        from harbor.models.trial.config import AgentConfig

        agent = AgentFactory.get_agent_class_from_config(AgentConfig(name=name))
        made = cls(name, dict(kwargs), _kind_of(agent))
        config = made.config(_EXAMPLE)
        agent.preflight(kwargs=config.kwargs, env=config.env)
        if made.kind != "own":
            made._check(config)
        return made

    @property
    def is_installed(self) -> bool:
        """True if the agent runs inside the environment and calls the policy from there."""
        return self.kind not in ("terminus-2", "own")

    def config(self, endpoint: Endpoint, timeout_s: float | None = None) -> Any:
        """Return Harbor's `AgentConfig` for one rollout.

        Args:
            endpoint: the rollout's endpoint.
            timeout_s: seconds that the agent may take; None: the task's own limit.
        """
        from harbor.models.trial.config import AgentConfig

        kwargs = dict(self.kwargs)
        return AgentConfig(
            name=self.name,
            model_name=kwargs.pop("model_name", _MODELS.get(self.kind, _POLICY)),
            kwargs=self._arguments(kwargs, endpoint),
            env=self._variables(endpoint),
            override_timeout_sec=timeout_s,
        )

    def _arguments(self, kwargs: dict[str, Any], endpoint: Endpoint) -> dict[str, Any]:
        if self.kind == "own":
            return {**kwargs, "api_base": endpoint.base_url, "api_key": endpoint.api_key}
        if self.kind == "codex":
            return {**kwargs, "config": _codex_config(kwargs.get("config"), endpoint)}
        if self.kind != "terminus-2":
            return kwargs
        return {
            # A summary starts another conversation. For a recording, each trial would install a
            # recorder with pip.
            "enable_summarize": False,
            "record_terminal_session": False,
            **kwargs,
            "api_base": endpoint.base_url,
            "llm_kwargs": {**(kwargs.get("llm_kwargs") or {}), "api_key": endpoint.api_key},
        }

    def _variables(self, endpoint: Endpoint) -> dict[str, str]:
        clients: Mapping[Kind, ClientKind] = {
            "claude-code": "claude-code",
            "codex": "codex",
            "installed": "openai",
        }
        return endpoint.env(clients[self.kind]) if self.kind in clients else {}

    def _check(self, config: Any) -> None:
        """Refuse an agent that Harbor cannot point at an endpoint.

        Raises:
            ValueError: the agent would call another address or use another protocol.
        """
        from harbor.agents.agent_auth_resolution import resolve_agent_model_connection

        found = resolve_agent_model_connection(config)
        right = _EXAMPLE.anthropic_url if self.kind == "claude-code" else _EXAMPLE.base_url
        # Gemini CLI accepts any address, but uses Gemini's protocol.
        is_foreign = self.kind == "installed" and not str(
            found.model_api_format or "openai"
        ).startswith("openai")
        if (found.execution_base_url, found.api_key) != (right, _EXAMPLE.api_key) or is_foreign:
            raise ValueError(
                f"harbor_tasks(agent={self.name!r}): abut cannot connect this agent to the policy, "
                "because its environment variables do not name an endpoint of OpenAI's protocols\n"
                'hint: use agent="terminus-2", "claude-code" or "codex", or "module:Class" for '
                "your "
                "own agent"
            )


def _kind_of(agent: type) -> Kind:
    from harbor.agents.installed.base import BaseInstalledAgent
    from harbor.agents.installed.claude_code import ClaudeCode as HarborClaudeCode
    from harbor.agents.installed.codex import Codex as HarborCodex
    from harbor.agents.terminus_2 import Terminus2

    kinds: list[tuple[type, Kind]] = [
        (Terminus2, "terminus-2"),
        (HarborClaudeCode, "claude-code"),
        (HarborCodex, "codex"),
        (BaseInstalledAgent, "installed"),
    ]
    return next((kind for base, kind in kinds if issubclass(agent, base)), "own")


def _codex_config(given: str | PathLike[str] | Mapping[str, Any] | None, endpoint: Endpoint) -> Any:
    """Return Codex's settings: the user's, with the endpoint's address."""
    if isinstance(given, str | PathLike):
        given = tomllib.loads(Path(given).read_text(encoding="utf-8"))
    return _merged(given or {}, codex_settings(endpoint.base_url, endpoint.max_context_tokens))


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both tables merged; `second` wins."""
    merged = dict(first)
    for key, value in second.items():
        known = merged.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            value = _merged(known, value)
        merged[key] = value
    return merged
