"""Agents: what owns its loop, and asks the policy at an endpoint that speaks OpenAI's protocol.

Invariant: an agent never sees tokens and the policy never sees the agent; between the two stands
the gateway, which keeps what was said exact to the token.
"""

import functools
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from abut.envs.foreign import place_of, place_of_code, placed
from abut.envs.reset_keywords import (
    UnplayableRow,
    accepted_by,
    check_removed,
    lacks_column,
)
from abut.envs.task import RolloutTask
from abut.errors import EnvError
from abut.messages import Message

AgentFunction: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Endpoint:
    """Where one rollout of an agent asks the policy.

    Attributes:
        base_url: for an OpenAI client; it ends in `/v1`.
        api_key: opens this rollout alone.
        model: the name to ask for; any other one is answered as well.
        rollout_id: its id, with the attempt.
    """

    base_url: str
    api_key: str = field(repr=False)
    model: str
    rollout_id: str
    counted: Callable[[], int] | None = field(default=None, repr=False, compare=False)

    @property
    def calls(self) -> int:
        """How many calls the policy has answered so far; known where the gateway is.

        Raises:
            RuntimeError: this is another process.
        """
        if self.counted is None:
            raise RuntimeError(
                "Endpoint.calls is counted in the gateway's process\n"
                "hint: read it there, before or after the agent asks from elsewhere"
            )
        return self.counted()

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes, which can ask and not count."""
        return Endpoint, (self.base_url, self.api_key, self.model, self.rollout_id)


@dataclass(frozen=True)
class AgentResult:
    """The result of an agent's rollout.

    Attributes:
        reward: None is no score.
        extras: more columns for reward functions; a rollout without one of them has None there.
            If a name has a slash, abut logs the mean of its column.
        messages: the conversation as the agent tells it; None: as the gateway heard it.
        measured: False says that nothing was measured, so no reward function may score the rollout
            (`abut.trl.scored_only`). A reward of None alone leaves it to the other functions.
    """

    reward: float | None
    extras: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Message] | None = None
    measured: bool = True


@runtime_checkable
class Agent(Protocol):
    """Plays whole rollouts. `@agent` makes one of a function.

    One may also have, each called once for each batch that it plays in:

    - `async start(gateway)`, before any rollout; what it raises ends the batch.
    - `async settle(played, tokenizer)`, when all rollouts of the batch have ended (where rollouts
      stream, all of a group) and before anything is made of them: for scores that take more than
      one rollout. `played` has each of this agent's as `(task, rollout)`, failed ones too, and
      `tokenizer` decodes their tokens; it may set `reward`, `measured`, `extras` and
      `turns[k].reward` of a rollout. What it raises ends the batch.
    - `async stop()`, after it, also where the batch was given up.

    With the attribute `judge = "policy"`, requests that name no rollout, which the gateway refuses
    otherwise, are answered from the policy and never trained.

    One that lends agents, as a pool lends environments, has `async lend(task)` besides: each
    rollout is then played by what that returns, whose `close()` gives it back.
    """

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> float | AgentResult | None:
        """Play one rollout against the endpoint; returns its reward, None for no score."""
        ...


class FunctionAgent:
    """An agent that `@agent` makes of a function.

    Attributes:
        function: it.
        is_async: whether it is a coroutine function; else it has a thread of its own.
    """

    def __init__(self, function: AgentFunction) -> None:
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __reduce__(self) -> tuple[Any, ...]:
        """By its name, as functions are; one that no import finds, by its function."""
        module = getattr(self.function, "__module__", None)
        name = getattr(self.function, "__qualname__", "")
        if module not in (None, "__main__"):
            try:
                if _named(module, name) is self:
                    return _named, (module, name)
            except (ImportError, AttributeError):  # made in a function, or by a loader
                pass
        return FunctionAgent, (self.function,)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the function itself, in a test say."""
        return self.function(*args, **keywords)

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> Any:
        """Play one rollout."""
        returned = self.begin(endpoint, task)
        return await returned if inspect.isawaitable(returned) else returned

    def begin(self, endpoint: Endpoint, task: RolloutTask) -> Any:
        """Call the function with what it names of the row; an async one gives an awaitable.

        Raises:
            UnplayableRow: the row lacks a column that it needs.
        """
        check_removed(self.function, self.__name__, task)
        keywords = accepted_by(self.function, task.columns, task.episode_seed)
        try:
            return self.function(endpoint, **keywords)
        except TypeError as error:
            if lacks := lacks_column(self.function, self.__name__, task, error):
                raise lacks from error
            raise


def agent(function: AgentFunction) -> FunctionAgent:
    """Make an agent of a function, async or sync, as a decorator.

    It is called with an `Endpoint`, and with those columns of the dataset's row, and
    `episode_seed`, that it names. What it returns is the reward: a number, None for no score, or an
    `AgentResult`. A sync function has a thread of its own, an async one shares a loop.

    Raises:
        TypeError: it is no function that takes an endpoint.
    """
    if not callable(function) or inspect.isclass(function):
        raise TypeError(
            f"@agent takes a function, got {function!r}\n"
            "hint: async def solve(endpoint, question): …; a class with `async def run(self, "
            "endpoint, task)` is an agent without it"
        )
    return FunctionAgent(function)


def is_agent(env: Any) -> bool:
    """Return whether it is an agent; the class of an agent is not."""
    return isinstance(env, Agent) and not inspect.isclass(env)


def name_of(agent: Agent) -> str:
    """Return the name of an agent in errors."""
    return getattr(agent, "__name__", type(agent).__name__)


def kind_of(agent: Agent) -> Any:
    """Return what its rollouts have in common: the agent that a function became, or its class."""
    return agent if isinstance(agent, FunctionAgent) else type(agent)


def place_of_agent(agent: Agent) -> str:
    """File and line where its code begins."""
    agent = getattr(agent, "__wrapped__", agent)  # what a pool of agents lends
    if isinstance(agent, FunctionAgent):
        return place_of_code(agent.function)
    return place_of(agent, "run")


def result_of(
    returned: Any, name: str, where: str, *, on_nan: Callable[[], None] | None = None
) -> AgentResult:
    """What an agent returned, with a reward that is finite or None.

    Args:
        returned: by `run`.
        name: what errors call the agent.
        where: the place of its code, for the error.
        on_nan: called where the reward is not finite, which few mean.

    Raises:
        EnvError: it is no reward.
    """
    result = returned if isinstance(returned, AgentResult) else AgentResult(returned)
    reward, extras, messages = result.reward, result.extras, result.messages
    if reward is not None:
        try:
            reward = float(reward)
        except OverflowError:
            reward = math.inf
        except Exception:
            raise placed(
                EnvError(
                    f"{name} returned {type(reward).__name__}: expected a number, None or an "
                    "AgentResult\nhint: return the reward; None says that there is no score"
                ),
                where,
            ) from None
        if not math.isfinite(reward):
            reward = None
            if on_nan is not None:
                on_nan()
    if not isinstance(extras, Mapping) or not all(isinstance(key, str) for key in extras):
        raise placed(EnvError(f"{name}: AgentResult.extras must be a dict with names"), where)
    if messages is not None and not all(isinstance(message, Mapping) for message in messages):
        raise placed(EnvError(f"{name}: AgentResult.messages must be a list of messages"), where)
    if not isinstance(result.measured, bool):
        raise placed(
            EnvError(
                f"{name}: AgentResult.measured is {result.measured!r}, expected True or False\n"
                "hint: False says that nothing was measured"
            ),
            where,
        )
    return AgentResult(reward, dict(extras), messages, result.measured)


def _named(module: str, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


__all__ = ["Agent", "AgentResult", "Endpoint", "UnplayableRow", "agent"]
