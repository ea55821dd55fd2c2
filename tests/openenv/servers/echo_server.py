"""Echo, on the openenv package: says back what it hears, and which session and episode it is."""

import itertools
import os

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

_SESSIONS = itertools.count()
_MAX = int(os.environ.get("MAX_SESSIONS", "64"))


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed: str = ""
    session: int = 0
    episode: int = 0
    pid: int = 0


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.session = next(_SESSIONS)
        self.episode = 0
        self.steps = 0

    def said(self, text: str) -> EchoObservation:
        return EchoObservation(
            echoed=text,
            session=self.session,
            episode=self.episode,
            pid=os.getpid(),
            reward=float(self.steps) if self.steps else None,
            done=self.steps >= 3,
        )

    def reset(self, seed=None, episode_id=None, **kwargs) -> EchoObservation:
        self.episode += 1
        self.steps = 0
        return self.said(f"seed {seed} {kwargs}")

    def step(self, action, timeout_s=None, **kwargs) -> EchoObservation:
        if action.message == "die":
            os._exit(3)
        if action.message == "raise":
            raise RuntimeError("boom")
        self.steps += 1
        return self.said(action.message)

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


app = create_app(Echo, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=_MAX)
