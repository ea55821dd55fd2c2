"""The servers of one head: the addresses of agents, and the agent of each row.

Invariant: a row has one agent, or the error lists the agents that exist. An environment server that
is more than a relay gets its agent's rollouts, because it prepares and scores them.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

AGENTS = "responses_api_agents"
ENVIRONMENTS = "environment_servers"
MODELS = "responses_api_models"
RESOURCES = "resources_servers"

QUOTING = frozenset({"proof_refinement_agent"})
"""Agents whose second request is one message that quotes the last answer, without the rollout's id.

A judge's request looks the same and does not belong to the rollout, so these agents are listed.
"""
_RELAY = "legacy_agent"
_TYPED_ONLY = "single_agent_turn"
_OWN_MODEL = "model_server"
"""The setting of an agent that names its model server."""
# If one of these settings is false, the judge is configured but never called.
_JUDGE_SWITCHES = ("should_use_judge", "enable_llm_judge")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)(?:,[^}]*)?\}")
_DEEPEST = 16


@dataclass(frozen=True)
class PlayedBy:
    """The server that plays a row.

    Attributes:
        agent: the agent's name, for logs and metrics.
        url: the address that has `/run`.
        environment: the server's name if it is an environment server.
        kind: the kind of that environment server.
    """

    agent: str
    url: str
    environment: str | None = None
    kind: str | None = None

    @property
    def is_typed(self) -> bool:
        """True if the server takes only episodes, not flat rows."""
        return self.kind == _TYPED_ONLY


@dataclass(frozen=True)
class ModelServer:
    """A model server of Gym, which calls the gateway for an agent.

    Attributes:
        name: the server's name.
        kind: `vllm_model` and others.
        settings: its part of the configuration, references resolved; holds the gateway's key.
    """

    name: str
    kind: str
    settings: Mapping[str, Any]

    @property
    def api_key(self) -> str | None:
        """The key that it sends; None if only its own process knows the key.

        If the key is an environment variable, this process's variable of that name is used.
        """
        said = str(self.settings.get("api_key"))
        if (variable := _VARIABLE.fullmatch(said)) is not None:
            return os.environ.get(variable[1])
        return None if "${" in said else said

    @property
    def base_urls(self) -> list[str]:
        """The addresses that it calls; several if it spreads rollouts."""
        said = self.settings.get("base_url")
        return [str(url) for url in (said if isinstance(said, list) else [said]) if url]


@dataclass(frozen=True)
class AskedApart:
    """A model that a server calls in addition to its agent's own: a judge, or a simulated user.

    Attributes:
        server: the name of the server that calls it.
        kind: that server's kind, `resources_servers` and others.
        field: its setting that names the model.
        model: the model server's name, or the address that the setting has instead.
        urls: the model's addresses.
    """

    server: str
    kind: str
    field: str
    model: str
    urls: Sequence[str]


class Servers:
    """The servers that a head knows.

    Args:
        instances: the head's `/server_instances`.
        config: the head's `/global_config_dict_yaml`, parsed.

    Raises:
        ValueError: these are not the answers of a head.
    """

    def __init__(self, instances: Any, config: Any) -> None:
        if not isinstance(instances, list) or not isinstance(config, dict):
            raise ValueError("the answer has no list of servers or no configuration")
        self._config: Mapping[str, Any] = config
        self._urls: dict[str, dict[str, str]] = {}
        for instance in instances:
            if not isinstance(instance, dict):
                raise ValueError("the list of servers has an entry that is not a server")
            kind, name = instance.get("server_type"), instance.get("process_name")
            url = instance.get("url")
            if isinstance(kind, str) and isinstance(name, str) and isinstance(url, str):
                self._urls.setdefault(kind, {})[name] = url.rstrip("/")
        self._played = dict(self._all_played())

    @property
    def agents(self) -> list[str]:
        """The names of all agents, and of environment servers with several agents."""
        return sorted(self._played)

    def of(self, agent: str) -> PlayedBy:
        """Return the server that plays an agent's rows.

        Raises:
            ValueError: the agent does not exist.
        """
        if (played := self._played.get(agent)) is not None:
            return played
        raise ValueError(f"there is no agent {agent!r}; the agents are: {self._listed()}")

    def agent_of(self, row: Mapping[str, Any], default: str | None = None) -> str:
        """Return the agent of a row: by its `agent_ref`, `task_source`, taskset, or the default.

        If a `task_source` fits several agents, the default decides.

        Raises:
            ValueError: the row does not name an existing agent, or several fit.
        """
        reference = row.get("agent_ref")
        name = reference.get("name") if isinstance(reference, Mapping) else reference
        if isinstance(name, str) and name:
            return self.of(name).agent
        if (source := row.get("task_source")) is not None:
            return self._of_source(str(source), default)
        task = row.get("task_id")
        taskset = task.get("taskset") if isinstance(task, Mapping) else None
        if isinstance(taskset, str) and default is None:
            return self._of_taskset(taskset)
        if default is not None:
            return self.of(default).agent
        raise ValueError(
            "the row names no agent: it has neither agent_ref nor task_source; the agents are: "
            f"{self._listed()}"
        )

    def model_of(self, agent: str) -> ModelServer | None:
        """Return the model server that an agent calls; None if its configuration has none."""
        reference = self._settings_of(agent, AGENTS).get(_OWN_MODEL)
        return self._model(reference.get("name") if isinstance(reference, Mapping) else None)

    def behind(self, agent: str) -> Iterator[tuple[str, str, str]]:
        """Yield the kind, name and address of each server that an agent needs, as far as known."""
        model = self.model_of(agent)
        for what, kind, name in (
            ("resources server", RESOURCES, self._resources_of(agent)),
            ("model server", MODELS, None if model is None else model.name),
        ):
            if (url := self._urls.get(kind, {}).get(str(name))) is not None:
                yield what, str(name), url

    def asked_apart(self, agent: str) -> Iterator[AskedApart]:
        """Yield the models that an agent and its resources server call besides the agent's own."""
        environment = self.of(agent).environment
        for kind, name in (
            (RESOURCES, self._resources_of(agent)),
            (AGENTS, agent),
            (ENVIRONMENTS, environment),
        ):
            if not isinstance(name, str):
                continue
            settings = self._settings_of(name, kind)
            off = any(settings.get(switch) is False for switch in _JUDGE_SWITCHES)
            for field, value in settings.items():
                if not (field == _OWN_MODEL or (off and _is_judge(field))):
                    yield from self._apart(name, kind, str(field), value)

    def _apart(self, server: str, kind: str, field: str, value: Any) -> Iterator[AskedApart]:
        if isinstance(value, Mapping):
            if (model := self._model(value.get("name"))) is not None:
                yield AskedApart(server, kind, field, model.name, model.base_urls)
        elif isinstance(value, str) and _is_judge(field):  # the address of a judge itself
            url = str(self._resolved(value))
            yield AskedApart(server, kind, field, url, [url])

    def _model(self, name: Any) -> ModelServer | None:
        """Return the model server of a name; None if there is no such server."""
        kinds = self._block(name, MODELS) if isinstance(name, str) else {}
        for kind, settings in kinds.items():
            known = settings if isinstance(settings, Mapping) else {}
            return ModelServer(str(name), str(kind), self._resolved(known))
        return None

    def kind_of(self, agent: str) -> str | None:
        """Return the implementation of an agent, such as `simple_agent`; None if unknown."""
        return next(map(str, self._block(agent, AGENTS)), None)

    def _all_played(self) -> Iterator[tuple[str, PlayedBy]]:
        for name, url in self._urls.get(AGENTS, {}).items():
            yield name, PlayedBy(name, url)
        for name, url in self._urls.get(ENVIRONMENTS, {}).items():
            for kind, settings in self._block(name, ENVIRONMENTS).items():
                reference = (settings or {}).get("agent_server")
                agent = reference.get("name") if isinstance(reference, Mapping) else None
                own = self._urls.get(AGENTS, {}).get(agent or "")
                if kind == _RELAY and own is not None:
                    yield name, PlayedBy(str(agent), own)
                    continue
                played = PlayedBy(agent or name, url, name, kind)
                yield name, played
                if agent is not None:
                    yield agent, played

    def _of_source(self, source: str, default: str | None = None) -> str:
        """Return the agent of a `task_source`, or the only agent of that resources server."""
        if source in self._played:
            return self._played[source].agent
        agents = sorted(self._urls.get(AGENTS, {}))
        found = [name for name in agents if self._resources_of(name) == source]
        if default in found:
            return str(default)
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(
                f"task_source {source!r} has several agents: {', '.join(found)}\n"
                "hint: choose one with agent=, or with agent_ref in the rows"
            )
        raise ValueError(
            f"task_source {source!r} is neither an agent nor the resources server of one; the "
            f"agents are: {self._listed()}"
        )

    def _of_taskset(self, taskset: str) -> str:
        routes = self._config.get("environment_server_routes")
        named = routes.get(taskset) if isinstance(routes, Mapping) else None
        return self._of_source(str(named or taskset.partition(":")[0]))

    def _resources_of(self, agent: str) -> Any:
        reference = self._settings_of(agent, AGENTS).get("resources_server")
        return reference.get("name") if isinstance(reference, Mapping) else None

    def _settings_of(self, name: str, kind: str) -> Mapping[str, Any]:
        """Return the settings of a server: the settings of its only implementation."""
        for settings in self._block(name, kind).values():
            return settings if isinstance(settings, Mapping) else {}
        return {}

    def _block(self, name: str, kind: str) -> Mapping[str, Any]:
        block = self._config.get(name)
        kinds = block.get(kind) if isinstance(block, Mapping) else None
        return kinds if isinstance(kinds, Mapping) else {}

    def _resolved(self, value: Any, depth: int = 0) -> Any:
        """Return a part of the configuration with its `${…}` resolved, as far as possible."""
        if depth > _DEEPEST:
            return value
        if isinstance(value, Mapping):
            return {key: self._resolved(part, depth + 1) for key, part in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self._resolved(part, depth + 1) for part in value]
        if not isinstance(value, str):
            return value
        if whole := _REFERENCE.fullmatch(value):
            found = self._at(whole[1])
            return value if found is None else self._resolved(found, depth + 1)

        def part_of(reference: re.Match[str]) -> str:
            found = self._at(reference[1])
            return reference[0] if found is None else str(self._resolved(found, depth + 1))

        return _REFERENCE.sub(part_of, value)

    def _at(self, path: str) -> Any:
        value: Any = self._config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def _listed(self) -> str:
        return ", ".join(self.agents) or "none"


def _is_judge(field: Any) -> bool:
    return "judge" in str(field)
