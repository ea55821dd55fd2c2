"""The decorator `@agent`, which makes an agent of a function.

Invariant: an agent never sees tokens and the policy never sees the agent; between the two stands
the gateway, which keeps what was said exact to the token.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, overload

from abut.agents.protocol import Agent, AgentFunction, Endpoint, checked_session_header
from abut.envs.foreign import place_of, place_of_code
from abut.envs.signatures import (
    accepted_by,
    check_removed,
    lacks_column,
)
from abut.envs.task import RolloutTask


class FunctionAgent:
    """An agent that `@agent` makes of a function.

    Attributes:
        function: it.
        is_async: whether it is a coroutine function; else it has a thread of its own.
        session_header: see `SessionAgent`.
    """

    def __init__(self, function: AgentFunction, session_header: str | None = None) -> None:
        self.function = function
        self.session_header = session_header
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
        return FunctionAgent, (self.function, self.session_header)

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


@overload
def agent(function: AgentFunction, *, session_header: str | None = None) -> FunctionAgent: ...


@overload
def agent(*, session_header: str | None) -> Callable[[AgentFunction], FunctionAgent]: ...


def agent(
    function: AgentFunction | None = None, *, session_header: str | None = None
) -> FunctionAgent | Callable[[AgentFunction], FunctionAgent]:
    """Make an agent of a function, async or sync, as a decorator.

    It is called with an `Endpoint`, and with those columns of the dataset's row, and
    `episode_seed`, that it names. What it returns is the reward: a number, None for no score, or an
    `AgentResult`. A sync function has a thread of its own, an async one shares a loop.

    Args:
        function: the function; left out in `@agent(session_header=…)`.
        session_header: the header by which its clients say which session a call belongs to.

    Raises:
        TypeError: it is no function that takes an endpoint.
        ValueError: `session_header` is not the name of such a header.
    """
    if session_header is not None:
        session_header = checked_session_header(session_header)
    if function is None:
        return lambda function: _agent(function, session_header)
    return _agent(function, session_header)


def _agent(function: AgentFunction, session_header: str | None) -> FunctionAgent:
    if not callable(function) or inspect.isclass(function):
        raise TypeError(
            f"@agent takes a function, got {function!r}\n"
            "hint: decorate a function such as async def solve(endpoint, question); an object "
            "with `async def run(self, endpoint, task)` is an agent without @agent"
        )
    return FunctionAgent(function, session_header)


def kind_of(agent: Agent) -> Any:
    """Return what its rollouts have in common: the agent that a function became, or its class."""
    return agent if isinstance(agent, FunctionAgent) else type(agent)


def place_of_agent(agent: Agent) -> str:
    """File and line where its code begins."""
    agent = getattr(agent, "__wrapped__", agent)  # what a pool of agents lends
    if isinstance(agent, FunctionAgent):
        return place_of_code(agent.function)
    return place_of(agent, "run")


def _named(module: str, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))
