"""The choice of the environment that plays a row.

Invariant: a row is played by the environment that it names, or by the only environment. If there
are several and a row does not name one, an error is raised before anything is played.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from abut.agents.protocol import Agent, is_agent
from abut.envs.env import AcceptedForTRL
from abut.envs.signatures import check_env_factory
from abut.envs.task import EnvFactory, EnvPool, EnvSource
from abut.gateway.play.played_agent import AgentSource
from abut.gateway.server.gateway import Gateway
from abut.tools.environment_factory import from_environment_factory, makes_environment_for_trl

EnvKind: TypeAlias = EnvFactory | EnvPool | EnvSource
"""The environment or agent that plays a row."""

OneEnv: TypeAlias = EnvKind | type[AcceptedForTRL] | Agent
EnvArgument: TypeAlias = OneEnv | Mapping[Any, OneEnv]
"""The argument `env`; the names of a mapping may have any type that the column has."""

ROUTE = "environment"
"""The column that names a row's environment; TRL's `environment_factory` reads the same column."""


class EnvRoute:
    """The environments in the argument `env`: one, or several by name.

    Args:
        env: an Env class, a factory without arguments, an environment pool, a source of
            environments, a class for TRL's `environment_factory`, an agent, or a mapping of names
            to these.
        gateway: the server through which agents call the policy.

    Raises:
        TypeError: `env` is not one of these.
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
                "env is an empty mapping, so there is no environment to choose\n"
                'hint: env={"math": MathEnv, "game": GameEnv}'
            )
        self._named = {name: self._checked(name, kind) for name, kind in env.items()}

    @property
    def is_by_name(self) -> bool:
        """True if each row must name its environment."""
        return self._named is not None

    @property
    def names(self) -> list[str]:
        """The names by which rows name environments; empty if there is only one environment."""
        return list(map(str, self._named or ()))

    @property
    def kinds(self) -> list[EnvKind]:
        """All environments that rows can name."""
        return [self._only] if self._named is None else list(self._named.values())

    @property
    def agents(self) -> list[AgentSource]:
        """The environments that are agents."""
        return [kind for kind in self.kinds if isinstance(kind, AgentSource)]

    def of_row(self, columns: Mapping[str, Any], row: str) -> tuple[EnvKind, dict[str, Any]]:
        """Return the environment of a row, and the columns except for the one that chooses it.

        Args:
            columns: the columns of the row.
            row: names the row in errors.

        Raises:
            ValueError: the row does not name an environment, or names one that does not exist.
        """
        if self._named is None:
            return self._only, dict(columns)
        left = dict(columns)
        name = left.pop(ROUTE, None)
        if name is None:
            names = ", ".join(map(repr, self._named))
            raise ValueError(
                f"{row} has no column {ROUTE!r}, which must name one of the environments: "
                f"{names}\n"
                f'hint: add the column to the dataset, or set prompt[-1]["row"][{ROUTE!r}]'
            )
        self._check_name(name, row)
        return self._named[name], left

    def check_column(self, dataset: Any) -> None:
        """Refuse a dataset in which some row names an environment that does not exist.

        Otherwise only the batch with such a row would fail, perhaps after hours.

        Args:
            dataset: a `datasets` dataset. It is not checked if its columns cannot be read in
                advance, as in a stream.

        Raises:
            ValueError: a row names an unknown environment; gives the number of the first one, from
                0.
        """
        if self._named is None or ROUTE not in (getattr(dataset, "column_names", None) or ()):
            return
        if not hasattr(dataset, "unique"):  # a stream
            return
        column = dataset[ROUTE]
        known = [*self._named, None]  # a row without a name may have one in its prompt
        if all(name in known for name in dataset.unique(ROUTE)):
            return
        for number, name in enumerate(column):
            if name is not None:
                self._check_name(name, f"row {number} of the dataset")

    def _check_name(self, name: Any, row: str) -> None:
        assert self._named is not None
        if name not in list(self._named):  # a list in the column has no hash
            names = ", ".join(map(repr, self._named))
            raise ValueError(
                f"{row} has {ROUTE}={name!r}, but the environments are: {names}\n"
                "hint: use the names in the column as the keys of env= in make_rollout_func"
            )

    def _checked(self, name: Any, env: OneEnv) -> EnvKind:
        try:
            return self._kind_of(env)
        except TypeError as error:
            raise TypeError(f"env[{name!r}]: {error}") from None

    def _kind_of(self, env: Any) -> EnvKind:
        if is_agent(env):
            return AgentSource(env, self.gateway)
        if makes_environment_for_trl(env):
            return from_environment_factory(env)
        return env if isinstance(env, EnvSource) else check_env_factory(env)
