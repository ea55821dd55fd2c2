"""Environments of plain Python functions that the policy calls.

Invariant: an episode goes on as long as the policy calls tools. An action without a call is its
answer, and the user's function scores the whole conversation, once.
"""

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias

from abut.envs.env import Reply
from abut.envs.signatures import check_columns, named_keywords
from abut.envs.source import BoundSource, question_of
from abut.envs.task import RolloutTask
from abut.errors import MissingExtraError
from abut.messages import Message
from abut.processor import CallReadingProcessor, PartsProcessor
from abut.tool_calls.parse import ToolCallFormat, parse_tool_calls
from abut.tool_calls.parsed import Parse
from abut.tools.tool_messages import ToolAnswers, spoken_messages
from abut.tools.toolbox import Function, Toolbox, ToolCounts, ToolFaults, ToolRules

Score: TypeAlias = Callable[..., float | Awaitable[float | None] | None]


def tool_env(
    functions: Sequence[Function],
    *,
    reward: Score,
    on_malformed: Literal["feed_back", "end"] = "feed_back",
    timeout_s: float = 30.0,
    max_calls: int = 16,
    max_result_chars: int | None = 20_000,
    format: ToolCallFormat | None = None,
) -> "ToolEnv":
    """Make an environment for `make_rollout_func` of functions that the policy may call.

    The calls of one turn run at once, sync functions on threads, async ones on a loop. Each is
    answered by a `role: tool` message: a text as it is, other values as JSON, and what went wrong
    as `{"error": …}`. A function that raises `EnvError` ends the attempt instead: the environment
    failed, not the policy.

    Args:
        functions: sync or async; transformers makes their schemas of type hints and docstrings.
        reward: called with the messages of the whole conversation, once, and with those columns of
            the row that its signature names; sync or async. None is no score.
        on_malformed: what began as a call and is none: "feed_back" tells the policy what is wrong
            with it, "end" ends the episode, and no call of that turn is run.
        timeout_s: seconds for the calls of one turn; keep it below `step_timeout_s`. Calls that
            take longer are answered by an error; an async one is cancelled, a thread is left alone.
        max_calls: more calls of one turn are not run, and answered by one error.
        max_result_chars: what is longer is cut, and a last line says so. None cuts nothing.
        format: how the policy writes calls; None: as the chat template does.

    Raises:
        TypeError: no schema can be made of a function, or `reward` cannot be called.
        ValueError: there is no function, two have one name, or a setting is out of range.
        MissingExtraError: transformers is not installed.
    """
    if not callable(reward):
        raise TypeError(
            f"reward must be a function of the messages, got {type(reward).__name__}\n"
            "hint: lambda messages: float('42' in messages[-1]['content'])"
        )
    by_name = schemas_by_name(functions)
    if not by_name:
        raise ValueError("tool_env got no function\nhint: tool_env([search, …], reward=…)")
    rules = ToolRules(on_malformed, timeout_s, max_calls, max_result_chars)
    names = dict(zip(by_name, functions, strict=True))
    return ToolEnv(names, tuple(by_name.values()), reward, rules, format)


@dataclasses.dataclass(frozen=True)
class ToolEnv:
    """A source of environments, made by `tool_env`."""

    functions: Mapping[str, Function]
    tools: Sequence[Mapping[str, Any]]
    """Their JSON schemas."""
    reward: Score
    rules: ToolRules
    format: ToolCallFormat | None

    def bind(self, processor: PartsProcessor) -> BoundSource:
        """Return what makes environments for tasks."""
        parse = call_parser(processor, self.format, self.tools)
        answers, faults = ToolAnswers(processor, self.tools), ToolFaults("abut.tool_env")

        def make(task: RolloutTask) -> ToolEpisode:
            toolbox = Toolbox(self.functions, parse, answers, self.rules, faults)
            columns = {k: v for k, v in task.columns.items() if k != "messages"}
            scored = functools.partial(self.reward, ())
            named = named_keywords(scored, columns)

            async def begin() -> Reply:
                check_columns(scored, f"the reward function {_name_of(self.reward)}", task)
                asked = any(message["role"] == "user" for message in task.messages)
                return "" if asked else question_of(task)

            async def score(messages: list[Message]) -> float | None:
                name = f"the reward function {_name_of(self.reward)}"
                return await toolbox.ask(name, self.reward, messages, **named)

            return ToolEpisode(toolbox, begin, score)

        spoken = functools.partial(spoken_messages, processor, parse)
        return BoundSource(make, "tool_env", keeps_last=True, spoken=spoken, tools=self.tools)


class ToolEpisode:
    """An `AsyncEnv` around a toolbox."""

    def __init__(
        self,
        toolbox: Toolbox,
        begin: Callable[[], Awaitable[Reply]],
        score: Callable[[list[Message]], Awaitable[float | None]],
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
        """Give back the thread of the environment, if it has one."""
        if self._toolbox.thread is not None:
            self._toolbox.thread.give_back()
            self._toolbox.thread = None


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", repr(function)))


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
