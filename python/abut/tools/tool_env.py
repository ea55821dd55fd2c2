"""Environments of tools that the policy calls: functions, methods of a class, and MCP servers.

Invariant: an episode continues as long as the policy calls tools. An action without a call is its
answer, and the user's function then scores the whole conversation, once.
"""

import dataclasses
import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias

from abut.concurrency.threads import THREADS
from abut.envs.env import Reply
from abut.envs.signatures import check_columns, check_removed, named_keywords
from abut.envs.source import BoundSource, question_of
from abut.envs.task import RolloutTask
from abut.errors import MissingExtraError
from abut.extras import require_extra
from abut.messages import Message
from abut.processor import CallReadingProcessor, PartsProcessor
from abut.tool_calls.parse import ToolCallFormat, parse_tool_calls
from abut.tool_calls.parsed import Parse
from abut.tools.mcp_servers import McpEpisode, McpServers
from abut.tools.mcp_settings import checked_servers
from abut.tools.tool_messages import ToolAnswers, spoken_messages
from abut.tools.toolbox import Function, Toolbox, ToolCounts, ToolFaults, ToolRules

Score: TypeAlias = Callable[..., float | Awaitable[float | None] | None]


def tool_env(
    functions: Sequence[Function] = (),
    *,
    reward: Score | None = None,
    mcp: Mapping[str, Mapping[str, Any]] | None = None,
    state: type | None = None,
    on_malformed: Literal["feed_back", "end"] = "feed_back",
    timeout_s: float = 30.0,
    max_calls: int = 16,
    max_result_chars: int | None = 20_000,
    format: ToolCallFormat | None = None,
) -> "ToolEnv":
    """Create an environment for `make_rollout_func` from tools that the policy may call.

    The calls of one turn run at the same time: sync functions on threads, async ones on an event
    loop. Each is answered with a `role: tool` message: a string unchanged, other values as JSON,
    and errors as `{"error": …}`. Raise `InvalidAction` in a tool to tell the policy what it did
    wrong. Raise `EnvError` if the environment, not the policy, failed; this ends the attempt.

    Args:
        functions: sync or async; transformers creates their schemas from type hints and docstrings.
        reward: called once with the messages of the whole conversation, with the columns of the row
            that its signature names, and with `state`; sync or async. It returns None for no score.
            Without `reward`, rollouts have no reward of their own, and the trainer's reward
            functions score them.
        mcp: servers of the Model Context Protocol by name, each `{"command": …}` or `{"url": …}`,
            with `session`, `tools`, `prefix`, `env` and `headers`; see docs/how-to/tools.md.
        state: a class whose public methods are tools. Each rollout gets a new object, created with
            the columns of the row that the constructor names. Sync methods run on one thread, in
            the order of the calls.
        on_malformed: what to do with text that begins like a call but is not valid: "feed_back"
            tells the policy what is wrong, "end" ends the episode without running any call of the
            turn.
        timeout_s: seconds for the calls of one turn; keep it below `step_timeout_s`. Calls that
            take longer are answered with an error; async calls are cancelled, threads continue.
        max_calls: most calls of a turn; one error answers all further calls, which are not run.
        max_result_chars: longer results are cut, and a last line says so. None: no limit.
        format: the format in which the policy writes calls; None: as the chat template does.

    Raises:
        TypeError: a function or method cannot be turned into a schema, or `reward` is not callable.
        ValueError: there are no tools, two have the same name, or a setting is invalid.
        MissingExtraError: transformers is not installed, or, for `mcp`, the package mcp.
    """
    if reward is not None and not callable(reward):
        raise TypeError(
            f"reward must be a function of the messages, got {type(reward).__name__}\n"
            "hint: lambda messages: float('42' in messages[-1]['content'])"
        )
    if state is not None and not inspect.isclass(state):
        raise TypeError(
            f"state must be a class, got {type(state).__name__}\n"
            "hint: abut creates an object for each rollout: state=Cart, not state=Cart()"
        )
    methods = {} if state is None else {n: method_of(state, n) for n in public_methods(state)}
    by_name = schemas_by_name([*functions, *methods.values()])
    if not by_name and not mcp:
        raise ValueError("tool_env got no tools\nhint: tool_env([search, …])")
    servers = None if mcp is None else checked_servers(mcp)
    if servers:
        require_extra("mcp")
    return ToolEnv(
        functions=dict(zip(by_name, functions, strict=False)),
        schemas=tuple(by_name.values()),
        reward=_no_score if reward is None else reward,
        rules=ToolRules(on_malformed, timeout_s, max_calls, max_result_chars),
        format=format,
        state=state,
        methods=tuple(methods),
        servers=McpServers(servers) if servers else None,
    )


def _no_score(messages: list[Message]) -> None:
    """Score nothing, for a `tool_env` without a reward."""


@dataclasses.dataclass(frozen=True)
class ToolEnv:
    """A source of environments, made by `tool_env`."""

    functions: Mapping[str, Function]
    schemas: Sequence[Mapping[str, Any]]
    """The JSON schemas of the functions and of the methods of `state`."""
    reward: Score
    rules: ToolRules
    format: ToolCallFormat | None
    state: type | None = None
    methods: Collection[str] = ()
    """The names of the methods of `state` that are tools."""
    servers: McpServers | None = None

    @functools.cached_property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The JSON schemas of all tools; the first access starts each MCP server once.

        Raises:
            EnvError: a server cannot be started.
            ValueError: two tools have the same name, or a server does not have a named tool.
        """
        found = {schema["function"]["name"]: (schema, "the functions") for schema in self.schemas}
        for whose, schema in self.servers.schemas() if self.servers else ():
            name = schema["function"]["name"]
            if name in found:
                raise ValueError(
                    f"two tools have the name {name!r}: one from {found[name][1]}, one from "
                    f"{whose}\n"
                    f'hint: give the server a "prefix" for the names of its tools, such as "files_"'
                )
            found[name] = (schema, whose)
        return tuple(schema for schema, _ in found.values())

    def close(self) -> None:
        """End the shared sessions with MCP servers; the next rollout would start them again.

        This also happens when the environment is garbage-collected, and at exit.
        """
        if self.servers is not None:
            self.servers.close()

    def bind(self, processor: PartsProcessor) -> BoundSource:
        """Bind the tools to the processor that writes the conversations."""
        parse = call_parser(processor, self.format, self.tools)
        answers, faults = ToolAnswers(processor, self.tools), ToolFaults("abut.tool_env")

        def make(task: RolloutTask) -> ToolEpisode:
            functions = dict(self.functions)
            toolbox = Toolbox(
                functions, parse, answers, self.rules, faults, own_thread=self.methods
            )
            sessions = None if self.servers is None else self.servers.episode()
            columns = {k: v for k, v in task.columns.items() if k != "messages"}

            async def begin() -> Reply:
                self._check_columns(task)
                if self.state is not None:
                    toolbox.thread = THREADS.call_queue()
                    made = functools.partial(self.state, **named_keywords(self.state, columns))
                    state = await toolbox.ask(f"{self.state.__name__}()", made)
                    functions.update((name, getattr(state, name)) for name in self.methods)
                    columns["state"] = state
                if sessions is not None:
                    functions.update(await sessions.begin())
                asked = any(message["role"] == "user" for message in task.messages)
                return "" if asked else question_of(task)

            async def score(messages: list[Message]) -> float | None:
                name = f"the reward function {_name_of(self.reward)}"
                named = named_keywords(functools.partial(self.reward, ()), columns)
                return await toolbox.ask(name, self.reward, messages, **named)

            return ToolEpisode(toolbox, begin, score, sessions)

        spoken = functools.partial(spoken_messages, processor, parse)
        return BoundSource(make, "tool_env", keeps_last=True, spoken=spoken, tools=self.tools)

    def _check_columns(self, task: RolloutTask) -> None:
        """Refuse a row without a column that the reward function or the class `state` needs."""
        scored = functools.partial(self.reward, ())
        if self.state is None:
            check_columns(scored, f"the reward function {_name_of(self.reward)}", task)
            return
        check_columns(self.state, f"{self.state.__name__}.__init__", task)
        check_removed(self.state, f"{self.state.__name__}.__init__", task, gets_seed=False)
        with_state = dataclasses.replace(task, columns={**task.columns, "state": None})
        check_columns(scored, f"the reward function {_name_of(self.reward)}", with_state)


class ToolEpisode:
    """An `AsyncEnv` around a toolbox."""

    def __init__(
        self,
        toolbox: Toolbox,
        begin: Callable[[], Awaitable[Reply]],
        score: Callable[[list[Message]], Awaitable[float | None]],
        sessions: McpEpisode | None = None,
    ) -> None:
        self.reward: Any = 0.0  # until the episode is scored
        self.alive = True
        self.extras: Any = None
        """The extras of `environment`, which abut checks like those of any environment."""
        self.environment: Any = None
        """The object that reward functions get in TRL's `environments`, set by `reset`."""
        self._toolbox = toolbox
        self._begin = begin
        self._score = score
        self._sessions = sessions

    @property
    def counts(self) -> ToolCounts:
        """The number of calls so far, by kind."""
        return self._toolbox.counts

    async def reset(self, seed: str) -> tuple[Self, Reply]:
        """Begin the episode with the text that follows the prompt."""
        return self, await self._begin()

    async def step(self, action: str) -> tuple[Self, Reply]:
        """Run the calls of an action; an action without a call is the final answer."""
        messages = await self._toolbox.answer(action)
        self.alive = messages is not None
        return self, messages or []

    async def score_episode(self, messages: list[Message]) -> None:
        """Set `reward`; see `abut.Env`."""
        self.reward = await self._score(messages)

    async def close(self) -> None:
        """Return the thread of the environment, and end its sessions, if any."""
        if self._toolbox.thread is not None:
            self._toolbox.thread.give_back()
            self._toolbox.thread = None
        if self._sessions is not None:
            await self._sessions.close()


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", repr(function)))


def public_methods(made: type, *, without: Collection[str] = ()) -> list[str]:
    """Return the names of a class's public methods, without reading properties of an object."""
    return [
        name
        for name, _ in inspect.getmembers(made, inspect.isfunction)
        if name not in without and not name.startswith("_")
    ]


def method_of(made: type, name: str) -> Function:
    """Return a method without `self`, which older versions of transformers treat as a parameter."""
    function: Function = getattr(made, name)
    if isinstance(inspect.getattr_static(made, name), staticmethod):
        return function
    return types.MethodType(function, made)


def schemas_by_name(functions: Sequence[Function]) -> dict[str, Mapping[str, Any]]:
    """Return the JSON schemas that transformers creates for functions, in order.

    Raises:
        TypeError: a function cannot be turned into a schema.
        ValueError: two functions have the same name.
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers.utils import get_json_schema
    except ImportError:
        raise MissingExtraError("tools need transformers: pip install 'abut[hf]'") from None
    schemas: dict[str, Mapping[str, Any]] = {}
    for function in functions:
        try:
            schema = get_json_schema(function)
        except Exception as error:  # what it raises depends on the docstring, and on the version
            name = getattr(function, "__name__", repr(function))
            raise TypeError(
                f"{name} cannot be a tool: {error}\n"
                "hint: give each parameter a type hint and a line under `Args:` in the docstring"
            ) from error
        if schemas.setdefault(name := schema["function"]["name"], schema) is not schema:
            raise ValueError(f"two tools have the name {name!r}\nhint: rename one of them")
    return schemas


def call_parser(
    processor: PartsProcessor, format: ToolCallFormat | None, tools: Sequence[Mapping[str, Any]]
) -> Parse:
    """Return a parser of calls: by `format`, or as the processor's template writes them.

    Raises:
        TypeError: the processor cannot parse calls.
        TemplateError: its template does not write calls.
    """
    if format is not None:
        parse: Parse = functools.partial(parse_tool_calls, format=format, tools=list(tools))
    elif isinstance(processor, CallReadingProcessor):
        parse = processor.parse_tool_calls
    else:
        raise TypeError(
            f"{type(processor).__name__} has no parse_tool_calls, so abut cannot read the policy's "
            'tool calls\nhint: leave processor= out, or name the format: format="hermes"'
        )
    parse("")  # what is wrong with the format is an error here, not of each rollout
    return parse
