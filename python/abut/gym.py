"""Gym-style objects as environments: `reset(seed=…)` returns two values, `step(action)` five.

Invariant: an invalid action is the policy's fault and never reaches the object. The package
gymnasium is not needed, only an object with the two methods.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

from abut.envs.env import Reply
from abut.envs.source import BoundSource
from abut.errors import EnvError
from abut.processor import PartsProcessor


class GymEnv:
    """A factory of environments for `make_rollout_func`, from a factory of Gym-style ones.

    Args:
        make: returns a new object for each episode.
        observe: returns the text or messages that the policy gets for an observation.
        act: returns the action in the policy's text, or raises `InvalidAction` or another
            `ValueError`, such as that of `int`. The policy is shown the text of the error.
        reset: more arguments for `reset`, such as `{"options": …}`; or a function that returns them
            for the row's columns. A `seed` here replaces the group's seed: to use a column of the
            row, write `lambda columns: {"seed": columns["seed"]}`.
        on_invalid: after an invalid action, "tell" the policy what is wrong and continue, or "end"
            the episode.
        invalid_reward: the reward of an invalid action.

    Raises:
        TypeError: `make` is not callable.
        ValueError: `on_invalid` has another value.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        observe: Callable[[Any], Reply] = str,
        act: Callable[[str], Any] = str,
        reset: Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        on_invalid: Literal["tell", "end"] = "tell",
        invalid_reward: float | None = 0.0,
    ) -> None:
        if not callable(make):
            raise TypeError(
                f"make must be a function that returns an environment, got {type(make).__name__}\n"
                'hint: GymEnv(lambda: gymnasium.make("…"))'
            )
        if on_invalid not in ("tell", "end"):
            raise ValueError(f"GymEnv(on_invalid={on_invalid!r}): must be 'tell' or 'end'")
        self.make = make
        self.observe = observe
        self.act = act
        self.reset = reset
        self.on_invalid = on_invalid
        self.invalid_reward = invalid_reward

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """None, because an action is plain text."""
        return ()

    def bind(self, processor: PartsProcessor) -> BoundSource:
        """Bind the factory, so that its environments know their task's row."""
        return BoundSource(lambda task: GymEpisode(self, task.columns), repr(self))

    def __call__(self) -> "GymEpisode":
        """Create an environment for one episode."""
        return GymEpisode(self, {})

    def __repr__(self) -> str:
        return f"GymEnv({getattr(self.make, '__name__', repr(self.make))})"


class GymEpisode:
    """An `Env` around one Gym-style object."""

    def __init__(self, settings: GymEnv, row: Mapping[str, Any]) -> None:
        self.reward: Any = None
        self.alive = False
        self._settings = settings
        self._row = row  # with its seed, which `reset` gets as text
        self._env = settings.make()

    def reset(self, seed: str, *, episode_seed: int = 0, **columns: Any) -> tuple[Self, Reply]:
        """Begin the episode with `episode_seed`."""
        more = self._settings.reset
        kwargs = more({**columns, **self._row}) if callable(more) else more or {}
        returned = self._env.reset(**{"seed": episode_seed, **kwargs})
        observation, _ = self._values("reset", returned, 2)
        self.alive = True
        return self, self._settings.observe(observation)

    def step(self, action: str) -> tuple[Self, Reply]:
        """Take one action; `terminated` and `truncated` both end the episode."""
        try:
            taken = self._settings.act(action)
        except ValueError as error:  # `InvalidAction` is one
            self.alive = self._settings.on_invalid == "tell"
            self.reward = self._settings.invalid_reward
            return self, str(error)
        values = self._values("step", self._env.step(taken), 5)
        observation, self.reward, terminated, truncated, _ = values
        self.alive = not (terminated or truncated)
        return self, self._settings.observe(observation)

    def close(self) -> None:
        """Close the object, if it has a method `close`."""
        close = getattr(self._env, "close", None)
        if close is not None:
            close()

    def _values(self, method: str, returned: Any, count: int) -> Any:
        if isinstance(returned, tuple) and len(returned) == count:
            return returned
        got = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
        raise EnvError(
            f"{type(self._env).__name__}.{method} must return {count} values, got {got}\n"
            "hint: since Gym 0.26 reset returns (observation, info), and step returns "
            "(observation, reward, terminated, truncated, info)"
        )
