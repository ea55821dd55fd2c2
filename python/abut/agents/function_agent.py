"""The decorator `@agent`, which turns a function into an agent.

Invariant: an agent never sees tokens and the policy never sees the agent; between them is the
gateway, which keeps each conversation exact to the token.
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
    """The agent that `@agent` makes from a function.

    Attributes:
        function: the decorated function.
        is_async: whether it is a coroutine function; otherwise it runs on its own thread.
        session_header: see `SessionAgent`.
    """

    def __init__(self, function: AgentFunction, session_header: str | None = None) -> None:
        self.function = function
        self.session_header = session_header
        self.is_async = inspect.iscoroutinefunction(function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it by name, like a function; if no import finds it, pickle its function."""
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
        """Call the function itself, for example in a test."""
        return self.function(*args, **keywords)

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> Any:
        """Play one rollout."""
        returned = self.begin(endpoint, task)
        return await returned if inspect.isawaitable(returned) else returned

    def begin(self, endpoint: Endpoint, task: RolloutTask) -> Any:
        """Call the function with the columns that it names; an async one returns an awaitable.

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
    """Decorator that turns a function, async or sync, into an agent.

    The function is called with an `Endpoint`, and with the columns of the dataset's row (and
    `episode_seed`) that are among its parameters. It returns the reward: a number, None for no
    score, or an `AgentResult`. A sync function runs on its own thread; async functions share an
    event loop.

    Args:
        function: the function; left out in `@agent(session_header=…)`.
        session_header: the header in which its clients name the session of a call.

    Raises:
        TypeError: it is not a function that takes an endpoint.
        ValueError: `session_header` is not the name of a header, or has another meaning.
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
    """Return the kind of an agent: its class, or the agent itself if a function became it."""
    return agent if isinstance(agent, FunctionAgent) else type(agent)


def place_of_agent(agent: Agent) -> str:
    """Return the file and line where its code begins."""
    agent = getattr(agent, "__wrapped__", agent)  # an agent that a pool lends
    if isinstance(agent, FunctionAgent):
        return place_of_code(agent.function)
    return place_of(agent, "run")


def _named(module: str, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))
