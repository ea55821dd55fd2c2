"""Environments as users write them, good ones and bad ones, for `test_env_types.py`."""
# ruff: noqa: F401  # the calls that are added use the other imports

import functools
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Self, TypedDict

import abut
from abut.envs import CopyRowEnv, EchoEnv, WordGuessEnv
from abut.envs.env import Reply
from abut.envs.task import RolloutTask
from abut.gym import GymEnv
from abut.messages import Message
from abut.openenv import OpenEnv
from abut.trl import from_environment_factory, make_rollout_func


class Chat(TypedDict):
    role: str
    content: str


class MyEnv:
    def __init__(self, level: int = 1) -> None:
        self.reward, self.alive = 0.0, True

    def reset(self, seed: str) -> tuple[Self, str]:
        return self, "begin"

    def step(self, action: str) -> tuple[Self, str]:
        return self, "on"


class Scored:
    reward: float | None = None
    alive = True

    def reset(self, question: str, *, level: int, episode_seed: int = 0) -> tuple["Scored", str]:
        return self, "begin"

    def step(self, said: str) -> tuple["Scored", list[dict[str, Any]]]:
        return self, [{"role": "tool", "content": said}]

    def score_episode(self, messages: list[Message]) -> None: ...
    def close(self) -> None: ...


class Typed:
    @property
    def reward(self) -> int:
        return 0

    @property
    def alive(self) -> bool:
        return False

    def reset(self, seed: str) -> tuple["Typed", list[Chat]]:
        return self, [{"role": "user", "content": "begin"}]

    def step(self, action: str) -> tuple[MyEnv, list[dict[str, str]]]:
        return MyEnv(), []


class Async:
    reward = 0
    alive = True

    async def reset(self, seed: str, **columns: Any) -> tuple[Self, str]:
        return self, "begin"

    async def step(self, action: str) -> tuple["Async", Reply]:
        return self, []

    async def close(self) -> None: ...


class Told(abut.Env):
    def __init__(self, level: int) -> None:
        self.reward, self.alive = 0.0, True

    def reset(self, seed: str) -> tuple[Self, str]:
        return self, "begin"

    def step(self, action: str) -> tuple[Self, str]:
        return self, "on"


class Untyped:
    def reset(self, seed):  # type: ignore[no-untyped-def]
        self.reward, self.alive = 0, True
        return self, "begin"

    def step(self, action):  # type: ignore[no-untyped-def]
        return self, "on"


class Pool:
    async def lend(self, task: RolloutTask) -> MyEnv:
        return MyEnv()


class ScoredPool:
    async def lend(self, task: RolloutTask) -> Scored | Async:
        return Scored()


class Counter:
    def reset(self, *, start: int = 0) -> str | None:
        return "count"

    def increment(self, by: int) -> int:
        """Increment.

        Args:
            by: how far.
        """
        return by


class Silent:
    def reset(self, **columns: Any) -> None: ...
    def increment(self) -> None:
        """Increment."""


class Stepless:
    reward, alive = 0.0, True

    def reset(self, seed: str) -> tuple[Self, str]:
        return self, "begin"


class AsyncStepless:
    reward, alive = 0.0, True

    async def reset(self, seed: str) -> tuple[Self, str]:
        return self, "begin"


class Resetless:
    reward, alive = 0.0, True

    def step(self, action: str) -> tuple[Self, str]:
        return self, "on"


class Halves:
    reward, alive = 0.0, True

    def reset(self, seed: str) -> tuple[Self, str]:
        return self, "begin"

    async def step(self, action: str) -> tuple[Self, str]:
        return self, "on"


class Gymlike:
    reward, alive = 0.0, True

    def reset(self, seed: str) -> tuple[Self, str]:
        return self, "begin"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", 0.0, True, False, {}


class NoReward:
    alive = True

    def reset(self, seed: str) -> tuple[Self, str]:
        return self, "begin"

    def step(self, action: str) -> tuple[Self, str]:
        return self, "on"


class OnlyText(MyEnv):
    def step(self, action: str) -> str:  # type: ignore[override]
        return "on"


def multiply(a: int, b: int) -> int:
    """Multiply.

    Args:
        a: one.
        b: the other.
    """
    return a * b


def score(messages: list[Message]) -> float:
    return 1.0


def make() -> MyEnv:
    return MyEnv(2)


def either(hard: bool) -> Callable[[], abut.Env | abut.AsyncEnv]:
    return make


def named() -> dict[str, Callable[[], abut.Env]]:
    return {"mine": MyEnv}


class Name(StrEnum):
    MINE = "mine"


level = 3
typed: dict[Name, type[MyEnv]] = {Name.MINE: MyEnv}
tools = abut.tool_env([multiply], reward=score)
