"""TextArena's GuessTheNumber, on the openenv package: each observation repeats the whole game."""

import textarena
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel


class GuessAction(Action):
    message: str


class Message(BaseModel):
    sender_id: int
    content: str
    category: str


class GuessObservation(Observation):
    prompt: str
    messages: list[Message]


class Guess(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    game_id = "GuessTheNumber-v0"

    def reset(self, seed=None, episode_id=None, **kwargs) -> GuessObservation:
        self.game = textarena.make(self.game_id)
        self.game.reset(num_players=1, seed=seed)
        return self.seen()

    def step(self, action, timeout_s=None, **kwargs) -> GuessObservation:
        done, _ = self.game.step(action.message)
        rewards = self.game.state.rewards or {}
        return self.seen(done=done, reward=rewards.get(0))

    def seen(self, **result) -> GuessObservation:
        _, text = self.game.get_observation()
        message = Message(sender_id=-1, content=text, category="MESSAGE")
        return GuessObservation(prompt=self.game_id, messages=[message], **result)

    @property
    def state(self) -> State:
        return State()


app = create_app(Guess, GuessAction, GuessObservation, env_name="guess", max_concurrent_envs=64)
