"""Pages in the manner of MiniWoB, as text, over OpenEnv's protocol: click the button that is named.

BROWSERGYM_TASK_NAME names the task. BrowserGym itself has the same actions and rewards.
"""

import os
import re

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

PAGES = {
    "click-test": {"13": "Click Me!"},
    "click-button": {"13": "no", "14": "yes", "15": "submit"},
}


class BrowserAction(Action):
    action_str: str


class Page(Observation):
    goal: str
    text: str
    last_action_error: bool = False


class MiniWeb(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, **kwargs):
        self.task = os.environ.get("BROWSERGYM_TASK_NAME", "click-test")
        self.buttons = PAGES[self.task]
        self.goal = [*self.buttons][-1]
        return self.page()

    def step(self, action, **kwargs):
        clicked = re.fullmatch(r"click\('(\d+)'\)", action.action_str)
        if clicked is None or clicked[1] not in self.buttons:
            return self.page(reward=0.0, last_action_error=action.action_str != "noop()")
        return self.page(reward=float(clicked[1] == self.goal), done=True)

    def page(self, **more):
        lines = [f"[{id_}] button '{label}'" for id_, label in self.buttons.items()]
        goal = f"Click the button {self.buttons[self.goal]!r}."
        return Page(goal=goal, text="\n".join(lines), **more)

    @property
    def state(self):
        return State()


app = create_app(MiniWeb, BrowserAction, Page, env_name="mini_web", max_concurrent_envs=64)
