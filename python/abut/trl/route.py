"""Which environment plays which row.

Invariant: a row is played by the environment that it names, or by the only one there is; a row
that names none of several is an error, before anything is played.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from abut.agents import Agent, is_agent
from abut.envs.accepted import AcceptedForTRL
from abut.envs.foreign import check_env_factory
from abut.envs.source import EnvSource
from abut.envs.task import EnvFactory, EnvPool
from abut.gateway.played_agent import AgentSource
from abut.gateway.server import Gateway
from abut.tools.environment_factory import from_environment_factory, is_environment_class

EnvKind: TypeAlias = EnvFactory | EnvPool | EnvSource
"""What plays a row."""

OneEnv: TypeAlias = EnvKind | type[AcceptedForTRL] | Agent
EnvArgument: TypeAlias = OneEnv | Mapping[Any, OneEnv]
"""What `make_rollout_func` takes; names are texts, an enum of them, whatever the column holds."""

ROUTE = "environment"
"""The column that names a row's environment; TRL's `environment_factory` reads the same one."""


class EnvRoute:
    """What `env` stands for: one kind of environment, or several by name.

    Args:
        env: an Env class, a factory without arguments, an environment pool, a source of
            environments, a class for TRL's `environment_factory`, an agent, or a mapping of names
            to these.
        gateway: where agents ask the policy.

    Raises:
        TypeError: it is none of these.
        ValueError: the mapping is empty.
    """

    def __init__(self, env: EnvArgument, gateway: Gateway | None = None) -> None:
        self._named: dict[Any, EnvKind] | None = None
        self.gateway = gateway or Gateway()
        if not isinstance(env, Mapping):
            self._only = self._kind_of(env)
            return
        if not env:
            raise ValueError(
                "env is an empty mapping: no environment can be chosen\n"
                'hint: {"math": MathEnv, "game": GameEnv}'
            )
        self._named = {name: self._checked(name, kind) for name, kind in env.items()}

    @property
    def is_by_name(self) -> bool:
        """Whether each row has to name its environment."""
        return self._named is not None

    @property
    def kinds(self) -> list[EnvKind]:
        """All environments that rows can name."""
        return [self._only] if self._named is None else list(self._named.values())

    @property
    def agents(self) -> list[AgentSource]:
        """Those of them that are agents."""
        return [kind for kind in self.kinds if isinstance(kind, AgentSource)]

    def of_row(self, columns: Mapping[str, Any], row: str) -> tuple[EnvKind, dict[str, Any]]:
        """Return what plays a row, and the columns that are not spent on choosing it.

        Args:
            columns: those of the row.
            row: says in errors which row it is.

        Raises:
            ValueError: the row names no environment, or one that does not exist.
        """
        if self._named is None:
            return self._only, dict(columns)
        left = dict(columns)
        name = left.pop(ROUTE, None)
        names = ", ".join(map(repr, self._named))
        if name is None:
            raise ValueError(
                f"{row} has no column {ROUTE!r}, which chooses one of the environments: {names}\n"
                f'hint: add the column to the dataset, or prompt[-1]["row"][{ROUTE!r}]'
            )
        if name not in list(self._named):  # a list in the column has no hash
            raise ValueError(
                f"{row} has {ROUTE}={name!r}, but the environments are: {names}\n"
                "hint: make_rollout_func takes them by the names that the column has"
            )
        return self._named[name], left

    def _checked(self, name: Any, env: OneEnv) -> EnvKind:
        try:
            return self._kind_of(env)
        except TypeError as error:
            raise TypeError(f"env[{name!r}]: {error}") from None

    def _kind_of(self, env: Any) -> EnvKind:
        if is_agent(env):
            return AgentSource(env, self.gateway)
        if is_environment_class(env):
            return from_environment_factory(env)
        return env if isinstance(env, EnvSource) else check_env_factory(env)
