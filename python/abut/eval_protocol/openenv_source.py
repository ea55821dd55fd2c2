"""The source of an OpenEnv test's environments: how one is made, and for which task.

Invariant: a group has one task, and the next group the next one, over all batches and ranks.
"""

import copy
import dataclasses
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

_BROWSERGYM = "BROWSERGYM_"


@dataclass(frozen=True)
class OpenEnvSource:
    """Makes environments; its fields have Eval Protocol's names.

    Attributes:
        prompt_builder: returns the user's message for `(observation, step from 1, history)`.
        action_parser: returns the action in a string of the policy.
        env_factory: makes an environment; wins over the other fields.
        env_client_cls: a client class of the openenv package, for a server or a container.
        env_base_url: the server's address.
        tasks: one for each group, in turn.
        task_var: the container's variable for the task.
    """

    prompt_builder: Callable[[Any, int, list[str]], Any]
    action_parser: Callable[[str], Any]
    env_factory: Callable[[], Any] | None = None
    env_client_cls: Any = None
    env_base_url: str | None = None
    hub_repo_id: str | None = None
    request_timeout_s: float = 15.0
    default_headers: Mapping[str, str] | None = None
    docker_image: str = "browsergym-env:latest"
    docker_port: int | None = None
    provider: Any = None
    env_vars: Mapping[str, str] = field(default_factory=dict)
    tasks: Sequence[str] = ()
    task_var: str | None = None

    @classmethod
    def of_processor(cls, processor: Any) -> "OpenEnvSource":
        """Return the source that an `OpenEnvRolloutProcessor` was made with."""
        given = {
            name: getattr(processor, f"_{name}", None)
            for name in (f.name for f in dataclasses.fields(cls))
        }
        given |= {
            "prompt_builder": processor.prompt_builder,
            "action_parser": processor.action_parser,
            "env_factory": processor._provided_env_factory,
        }
        if given["tasks"] and (given["env_factory"] or given["env_base_url"]):
            logger.warning(
                "abut ignores the tasks of this %s, because it has env_factory or env_base_url; "
                "Eval Protocol ignores them in evaluation too",
                type(processor).__name__,
            )
            given["tasks"] = None
        return cls(**{name: value for name, value in given.items() if value is not None})

    def __post_init__(self) -> None:
        """Refuse fields that cannot make an environment.

        Raises:
            ValueError: names the argument.
        """
        if self.tasks and not self.task_var:
            raise ValueError(
                "tasks= needs task_var=\nhint: task_var names the environment variable from which "
                "the server reads its task"
            )
        if self.env_factory is None and self.env_client_cls is None:
            raise ValueError(
                "no environment: pass env_factory=, or the class of a client as env_client_cls="
            )
        if self.tasks and (self.env_factory is not None or self.env_base_url is not None):
            raise ValueError(
                "tasks= needs containers that abut starts, because the tasks are set by an "
                "environment variable, but with env_factory= or env_base_url= abut does not start "
                "any\n"
                "hint: leave tasks= out; for a running server use abut.openenv.OpenEnv(tasks=…), "
                "which sends each group's task with reset"
            )

    def task_of(self, group: int) -> str | None:
        """Return the task of a group; None if there are no tasks."""
        return self.tasks[group % len(self.tasks)] if self.tasks else None

    def make(self, group: int) -> Any:
        """Make an environment for a rollout of a group; may block."""
        if self.env_factory is not None:
            return self.env_factory()
        if self.env_base_url is not None:
            return self._client_of_server()
        variables = dict(self.env_vars)
        if (task := self.task_of(group)) is not None and self.task_var is not None:
            variables[self.task_var] = str(task)
        # A provider remembers one container, so each environment gets its own provider.
        keywords: dict[str, Any] = {"provider": copy.copy(self.provider)}
        if variables:
            keywords["env_vars"] = variables
        if self.docker_port is not None:
            keywords["port"] = int(self.docker_port)
        if self.hub_repo_id is not None:
            return self.env_client_cls.from_env(self.hub_repo_id, **keywords)
        return self.env_client_cls.from_docker_image(self.docker_image, **keywords)

    def _client_of_server(self) -> Any:
        """Return a client, with the argument names of its version of the package."""
        offered = {
            "request_timeout_s": self.request_timeout_s,
            "message_timeout_s": self.request_timeout_s,
            "default_headers": self.default_headers,
            "headers": self.default_headers,
        }
        takes = inspect.signature(self.env_client_cls).parameters
        given = {k: v for k, v in offered.items() if k in takes and v is not None}
        if self.default_headers and not {"headers", "default_headers"} & given.keys():
            raise ValueError(
                f"default_headers= cannot be sent, because {self.env_client_cls.__name__} does not "
                "accept headers\nhint: pass env_factory=lambda: … with a client that sends them"
            )
        return self.env_client_cls(base_url=self.env_base_url, **given)


def browsergym_variables(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of a BrowserGym server.

    Args:
        settings: benchmark, headless, viewport_width, viewport_height, timeout_ms and miniwob_url,
            by Eval Protocol's names; None is not set.
    """
    variables = {
        f"{_BROWSERGYM}{name.upper()}": str(value).lower() if value in (True, False) else str(value)
        for name, value in settings.items()
        if value is not None and name not in ("miniwob_url", "timeout_ms")
    }
    for name, variable in (("timeout_ms", f"{_BROWSERGYM}TIMEOUT"), ("miniwob_url", "MINIWOB_URL")):
        if settings.get(name) is not None:
            variables[variable] = str(settings[name])
    return variables
