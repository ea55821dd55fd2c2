"""`FarEnv` on a server of the openenv package, for `Serve("benchmarks.env_server:app")`."""

import os
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from benchmarks.far_env import SESSIONS, FarEnv


class Words(Action):  # type: ignore[misc]
    """The policy's text."""

    message: str


class Heard(Observation):  # type: ignore[misc]
    """The environment's text."""

    text: str = ""


class Served(Environment):  # type: ignore[misc]
    """The environment of a session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._env = FarEnv()

    def reset(self, seed: Any = None, episode_id: Any = None, **columns: Any) -> Heard:
        """Begin an episode."""
        return self._heard(self._env.reset(str(seed), **columns)[1])

    def step(self, action: Words, timeout_s: Any = None, **_: Any) -> Heard:
        """Take an action."""
        return self._heard(self._env.step(action.message)[1])

    def close(self) -> None:
        """End with the session."""
        self._env.close()

    @property
    def state(self) -> State:
        """Return an empty state: the protocol requires one, and the benchmark does not use it."""
        return State()

    def _heard(self, text: str) -> Heard:
        return Heard(text=text, reward=self._env.reward, done=not self._env.alive)


app = create_app(
    Served, Words, Heard, env_name="bench", max_concurrent_envs=int(os.environ[SESSIONS])
)
