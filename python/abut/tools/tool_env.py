"""Environments of tools that the policy calls: functions, methods of a class, and MCP servers.

Invariant: an episode goes on as long as the policy calls tools. An action without a call is its
answer, and the user's function scores the whole conversation, once.
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
    """Make an environment for `make_rollout_func` of tools that the policy may call.

    The calls of one turn run at once, sync functions on threads, async ones on a loop. Each is
    answered by a `role: tool` message: a text as it is, other values as JSON, and what went wrong
    as `{"error": …}`. A function that raises `EnvError` ends the attempt instead: the environment
    failed, not the policy. One that raises `InvalidAction` says what the policy did wrong.

    Args:
        functions: sync or async; transformers makes their schemas of type hints and docstrings.
        reward: called with the messages of the whole conversation, once, and with those columns of
            the row that its signature names, and `state`; sync or async. It returns None for no
            score. Without a function no rollout has a score of its own, and the trainer's reward
            functions score it.
        mcp: servers of the Model Context Protocol by name, each `{"command": …}` or `{"url": …}`,
            with `session`, `tools`, `prefix`, `env` and `headers`; see docs/how-to/tools.md.
        state: a class whose public methods are tools. Each rollout has an object of its own, made
            with those columns of the row that the constructor names. Sync methods run on one
            thread, in the order of the calls.
        on_malformed: what began as a call and is none: "feed_back" tells the policy what is wrong
            with it, "end" ends the episode, and no call of that turn is run.
        timeout_s: seconds for the calls of one turn; keep it below `step_timeout_s`. Calls that
            take longer are answered by an error; an async one is cancelled, a thread is left alone.
        max_calls: more calls of one turn are not run, and answered by one error.
        max_result_chars: what is longer is cut, and a last line says so. None cuts nothing.
        format: how the policy writes calls; None: as the chat template does.

    Raises:
        TypeError: no schema can be made of a function or method, or `reward` cannot be called.
        ValueError: there is no tool, two have one name, or a setting is wrong or out of range.
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
            "hint: each rollout makes an object of its own: state=Cart, not state=Cart()"
        )
    methods = {} if state is None else {n: method_of(state, n) for n in public_methods(state)}
    by_name = schemas_by_name([*functions, *methods.values()])
    if not by_name and not mcp:
        raise ValueError("tool_env got no tool\nhint: tool_env([search, …])")
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
        """The JSON schemas of all tools. The first look starts each MCP server once, to ask it.

        Raises:
            EnvError: a server cannot be started.
            ValueError: two tools have one name, or a server lacks one that was asked for.
        """
        found = {schema["function"]["name"]: (schema, "the functions") for schema in self.schemas}
        for whose, schema in self.servers.schemas() if self.servers else ():
            name = schema["function"]["name"]
            if name in found:
                raise ValueError(
                    f"two tools have the name {name!r}: one of {found[name][1]}, one of {whose}\n"
                    f'hint: give the tools of a server a "prefix", such as "files_"'
                )
            found[name] = (schema, whose)
        return tuple(schema for schema, _ in found.values())

    def close(self) -> None:
        """End the shared sessions with MCP servers, which the next rollout would start again.

        Also done when nothing refers to this environment any more, and at exit.
        """
        if self.servers is not None:
            self.servers.close()

    def bind(self, processor: PartsProcessor) -> BoundSource:
        """Return what makes environments for tasks."""
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
        """Refuse a row without what the reward function or the class `state` cannot do without."""
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
        """The extras of `environment`, which abut checks as any environment's."""
        self.environment: Any = None
        """The object that reward functions get among TRL's `environments`, from `reset` on."""
        self._toolbox = toolbox
        self._begin = begin
        self._score = score
        self._sessions = sessions

    @property
    def counts(self) -> ToolCounts:
        """How many calls there were so far."""
        return self._toolbox.counts

    async def reset(self, seed: str) -> tuple[Self, Reply]:
        """Begin with what the prompt does not say."""
        return self, await self._begin()

    async def step(self, action: str) -> tuple[Self, Reply]:
        """Run what an action calls; without a call it is the answer."""
        messages = await self._toolbox.answer(action)
        self.alive = messages is not None
        return self, messages or []

    async def score_episode(self, messages: list[Message]) -> None:
        """Set `reward`; see `abut.Env`."""
        self.reward = await self._score(messages)

    async def close(self) -> None:
        """Give back the thread of the environment, and end its sessions, if it has any."""
        if self._toolbox.thread is not None:
            self._toolbox.thread.give_back()
            self._toolbox.thread = None
        if self._sessions is not None:
            await self._sessions.close()


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", repr(function)))


def public_methods(made: type, *, without: Collection[str] = ()) -> list[str]:
    """Return the names of a class's public methods, without a look at an object's properties."""
    return [
        name
        for name, _ in inspect.getmembers(made, inspect.isfunction)
        if name not in without and not name.startswith("_")
    ]


def method_of(made: type, name: str) -> Function:
    """A method without its `self`, which older versions of transformers take for a parameter."""
    function: Function = getattr(made, name)
    if isinstance(inspect.getattr_static(made, name), staticmethod):
        return function
    return types.MethodType(function, made)


def schemas_by_name(functions: Sequence[Function]) -> dict[str, Mapping[str, Any]]:
    """The JSON schema of each function, as transformers makes it, in order.

    Raises:
        TypeError: none can be made of a function.
        ValueError: two have one name.
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
                "hint: give each parameter a type hint, and a line under `Args:` in the docstring"
            ) from error
        if schemas.setdefault(name := schema["function"]["name"], schema) is not schema:
            raise ValueError(f"two tools have the name {name!r}\nhint: rename one of them")
    return schemas


def call_parser(
    processor: PartsProcessor, format: ToolCallFormat | None, tools: Sequence[Mapping[str, Any]]
) -> Parse:
    """Return a parser of calls: by `format`, or as the processor's template writes them.

    Raises:
        TypeError: the processor cannot.
        TemplateError: its template writes no calls.
    """
    if format is not None:
        parse: Parse = functools.partial(parse_tool_calls, format=format, tools=list(tools))
    elif isinstance(processor, CallReadingProcessor):
        parse = processor.parse_tool_calls
    else:
        raise TypeError(
            f"{type(processor).__name__} has no parse_tool_calls, so nothing reads what the policy "
            'calls\nhint: leave processor= out, or say format="hermes"'
        )
    parse("")  # what is wrong with the format is an error here, not of each rollout
    return parse
