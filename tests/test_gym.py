"""Gym-style objects as environments: one of our own, and a real one of gymnasium."""

from typing import Any

import gymnasium
import pytest

from abut.envs.guarded import make_env
from abut.envs.signatures import check_env_factory
from abut.errors import InvalidAction
from abut.gym import GymEnv
from tests.kit.stage.rollouts import Stage, assert_done


class Count:
    """Gym-style: count down from a number that the seed gives."""

    closed = 0

    def reset(self, *, seed: int, options: Any = None) -> tuple[Any, Any]:
        self.left = seed + (options or {}).get("more", 0)
        return self.left, {"hidden": "info"}

    def step(self, action: int) -> tuple[Any, float, bool, bool, Any]:
        self.left -= action
        return self.left, float(action), self.left <= 0, self.left > 90, {}

    def close(self) -> None:
        type(self).closed += 1


def number(text: str) -> int:
    if not text.isdigit():
        raise InvalidAction(f"{text!r} is no number.")
    return int(text)


def gym(make: Any = Count, **settings: Any) -> GymEnv:
    return GymEnv(make, **{"observe": lambda left: f"{left} left", "act": number} | settings)


def heard(rollout: Any) -> list[str]:
    return [m["content"] for m in rollout.messages if m["role"] != "assistant"]


def test_an_episode_ends_when_it_is_terminated(stage: Stage) -> None:
    closed = Count.closed
    rollout = stage.play(gym(), script="3").one
    assert_done(rollout)
    assert heard(rollout) == ["7 left", "4 left", "1 left", "-2 left"]
    assert rollout.step_rewards == [3.0, 3.0, 3.0]
    assert Count.closed == closed + 1


def test_an_episode_ends_when_it_is_truncated(stage: Stage) -> None:
    rollout = stage.play(gym(reset={"options": {"more": 100}}), script="3").one
    assert_done(rollout)
    assert heard(rollout) == ["107 left", "104 left"]


def test_reset_gets_what_the_columns_give(stage: Stage) -> None:
    settings = {"reset": lambda columns: {"options": {"more": columns["more"]}}}
    rollout = stage.play(gym(**settings), script="9", task={"columns": {"more": 2}}).one
    assert heard(rollout)[0] == "9 left"


def test_an_invalid_action_is_told(stage: Stage) -> None:
    texts = iter(["seven", "7"])
    rollout = stage.play(gym(), script=lambda request: stage.says(next(texts))(request)).one
    assert_done(rollout)
    assert heard(rollout) == ["7 left", "'seven' is no number.", "0 left"]
    assert rollout.step_rewards == [0.0, 7.0]


def test_a_value_error_of_act_is_an_invalid_action(stage: Stage) -> None:
    texts = iter(["seven", "7"])
    rollout = stage.play(gym(act=int), script=lambda request: stage.says(next(texts))(request)).one
    assert_done(rollout)
    told = "invalid literal for int() with base 10: 'seven'"
    assert heard(rollout) == ["7 left", told, "0 left"]


def test_a_value_error_of_the_environment_is_its_own_failure(stage: Stage) -> None:
    def step(self: Any, action: int) -> Any:
        raise ValueError("boom")

    broken = type("Broken", (Count,), {"step": step})
    played = stage.play(gym(broken), script="1", retries=0, max_failed_frac=1)
    assert played.one.error == "EnvError: GymEpisode.step raised ValueError: boom"


def test_an_invalid_action_may_end_the_episode(stage: Stage) -> None:
    rollout = stage.play(gym(on_invalid="end", invalid_reward=None), script="seven").one
    assert_done(rollout)
    assert (rollout.reward, len(rollout.turns), rollout.attempts) == (None, 1, 1)


HINT = (
    "hint: since Gym 0.26 reset returns (observation, info), and step returns (observation, "
    "reward, terminated, truncated, info)"
)


@pytest.mark.parametrize(
    ("method", "returned", "text"),
    [
        ("reset", 5, "Old.reset must return 2 values, got int"),
        ("step", (5, 0.0, True, {}), "Old.step must return 5 values, got 4 values"),
    ],
)
def test_an_older_gym_is_named(stage: Stage, method: str, returned: Any, text: str) -> None:
    old = type("Old", (Count,), {method: lambda self, *args, **kwargs: returned})
    played = stage.play(gym(old), script="1", retries=0, max_failed_frac=1)
    assert played.one.error == f"EnvError: {text}\n{HINT}"


def test_a_gym_env_is_a_factory() -> None:
    source = gym()
    one, two = make_env(check_env_factory(source)), make_env(check_env_factory(source))
    assert one is not two


def test_an_object_that_cannot_be_made_is_named(stage: Stage) -> None:
    def broken() -> Any:
        raise OSError("no display")

    played = stage.play(gym(broken), retries=0, max_failed_frac=1)
    assert played.one.error == "EnvError: GymEnv(broken)() raised OSError: no display"


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(TypeError) as raised:
        GymEnv(Count())  # type: ignore[arg-type]
    assert str(raised.value) == (
        "make must be a function that returns an environment, got Count\nhint: GymEnv(lambda: "
        'gymnasium.make("…"))'
    )
    with pytest.raises(ValueError, match="on_invalid") as refused:
        GymEnv(Count, on_invalid="retry")  # type: ignore[arg-type]
    assert str(refused.value) == "GymEnv(on_invalid='retry'): must be 'tell' or 'end'"


def test_a_real_environment_of_gymnasium_plays(stage: Stage) -> None:
    """Frozen Lake without ice: right, right, right, down, down, down leads to the goal."""
    steps = iter(["right"] * 2 + ["up"] + ["down"] * 3 + ["right"])
    moves = {"left": 0, "down": 1, "right": 2, "up": 3}
    played = stage.play(
        GymEnv(
            lambda: gymnasium.make("FrozenLake-v1", is_slippery=False),
            observe=lambda square: f"You are on square {square}.",
            act=moves.__getitem__,
        ),
        script=lambda request: stage.says(next(steps))(request),
    )
    rollout = played.one
    assert_done(rollout)
    squares = [0, 1, 2, 2, 6, 10, 14, 15]
    assert heard(rollout) == [f"You are on square {square}." for square in squares]
    assert rollout.reward == 1.0
