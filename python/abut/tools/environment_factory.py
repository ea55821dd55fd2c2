"""Plays classes for TRL's `environment_factory` with abut's engine.

Invariant: the policy gets the same as in TRL's own loop: the same tools in the same order, the text
of `reset` after the prompt's last message, and results and errors in TRL's words. Different from
TRL, each episode has a new environment, and the results of a turn come in the order of its calls.
An environment is created on a separate thread, where its sync methods run one at a time in the
order of the calls, because the object need not be thread-safe.
"""

import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from abut.concurrency.threads import THREADS
from abut.envs.env import Reply
from abut.envs.signatures import check_removed, lacks_column, named_keywords
from abut.envs.source import BoundSource, TaskEnvs, question_of
from abut.envs.task import RolloutTask
from abut.errors import EnvError
from abut.messages import Message, image_content, images_of
from abut.processor import PartsProcessor
from abut.tool_calls.parse import ToolCallFormat
from abut.tools.tool_env import (
    ToolEpisode,
    call_parser,
    method_of,
    public_methods,
    schemas_by_name,
)
from abut.tools.tool_messages import ToolAnswers, spoken_messages
from abut.tools.toolbox import Function, Result, Toolbox, ToolFaults, ToolRules, ToolTexts

_NO_TOOLS = ("reset", "get_reward")


def from_environment_factory(
    environment: Callable[[], Any],
    *,
    tools: Sequence[Function] = (),
    reward: Callable[[Any], float | Awaitable[float | None] | None] | None = None,
    on_malformed: Literal["feed_back", "end"] = "end",
    timeout_s: float = 30.0,
    max_calls: int = 16,
    max_result_chars: int | None = None,
    format: ToolCallFormat | None = None,
) -> "EnvironmentFactory":
    """Use a class for `GRPOTrainer(environment_factory=…)` with `make_rollout_func`.

    The public methods are tools. `reset` gets the row's columns and `prompt`; its result is added
    to the prompt's last message. Reward functions get `environments`, one for each row, or None if
    it could not be created.

    Args:
        environment: a class, or a factory, which abut calls once at once to see its methods.
        tools: more functions that the policy may call.
        reward: returns the reward of an episode from its environment, sync or async; None: use its
            `get_reward()`, or no score if it does not exist.
        on_malformed: as for `abut.tool_env`. TRL ends the episode.
        timeout_s: as for `abut.tool_env`.
        max_calls: as for `abut.tool_env`.
        max_result_chars: as for `abut.tool_env`.
        format: as for `abut.tool_env`.

    Raises:
        TypeError: there is no `reset`, or a method cannot be turned into a schema.
        ValueError: there are no tools, or two have the same name.
        MissingExtraError: transformers is not installed.
    """
    made = _class_of(environment) or type(environment())
    if not callable(getattr(made, "reset", None)):
        raise TypeError(
            f"{made.__name__} has no method 'reset'\n"
            "hint: pass a class or factory as for GRPOTrainer(environment_factory=…)"
        )
    names = public_methods(made, without=_NO_TOOLS)
    schemas = schemas_by_name([*tools, *(method_of(made, name) for name in names)])
    if not schemas:
        raise ValueError(
            f"{made.__name__} has no tools\n"
            "hint: add a public method; each one except reset and get_reward is a tool"
        )
    rules = ToolRules(on_malformed, timeout_s, max_calls, max_result_chars)
    return EnvironmentFactory(
        environment,
        dict(zip(schemas, tools, strict=False)),
        names,
        tuple(schemas.values()),
        reward,
        rules,
        format,
    )


def environments_of(tasks: Sequence[RolloutTask], kinds: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the column `environments` as TRL passes it to reward functions.

    Every batch has the column if one of the `kinds` of environments is a class for TRL, so the
    columns do not depend on the rows of a batch.
    """
    if not any(isinstance(kind, EnvironmentFactory) for kind in kinds):
        return {}
    makers = [task.source for task in tasks]
    made = [maker.last if isinstance(maker, TaskEnvs) else None for maker in makers]
    return {
        "environments": [env.environment if isinstance(env, ToolEpisode) else None for env in made]
    }


def makes_environment_for_trl(env: Any) -> bool:
    """Return True for a class for TRL or its factory: `reset`, documented methods, no `step`.

    The class of a factory is known without a call if the factory is a `functools.partial` of the
    class (such as TRL's `HarborSpec.environment_factory`), or a function whose annotation names the
    class.
    """
    made = _class_of(env)
    if made is None or hasattr(made, "step"):
        return False
    names = public_methods(made, without=_NO_TOOLS)
    return (
        callable(getattr(made, "reset", None))
        and bool(names)
        and all(getattr(made, name).__doc__ for name in names)
    )


def _class_of(environment: Any) -> type | None:
    """Return the class that a factory creates; None if only a call could tell."""
    while isinstance(environment, functools.partial):
        environment = environment.func
    if inspect.isclass(environment):
        return environment
    try:
        returned = inspect.get_annotations(environment, eval_str=True).get("return")
    except Exception:  # no function, or an annotation that names nothing
        return None
    return returned if inspect.isclass(returned) else None


@dataclasses.dataclass(frozen=True)
class EnvironmentFactory:
    """A source of environments, made by `from_environment_factory`."""

    make: Callable[[], Any]
    functions: Mapping[str, Function]
    """Tools that are not methods."""
    methods: Sequence[str]
    tools: Sequence[Mapping[str, Any]]
    """The JSON schemas of all tools."""
    reward: Callable[[Any], Any] | None
    rules: ToolRules
    format: ToolCallFormat | None

    def bind(self, processor: PartsProcessor) -> BoundSource:
        """Bind the environments to the processor that writes the conversations."""
        parse = call_parser(processor, self.format, self.tools)
        answers = ToolAnswers(processor, self.tools)
        faults = ToolFaults("abut.trl.from_environment_factory")

        name = getattr(self.make, "__name__", repr(self.make))

        def make(task: RolloutTask) -> ToolEpisode:
            functions = dict(self.functions)
            toolbox = Toolbox(
                functions, parse, answers, self.rules, faults, _TRL_TEXTS, own_thread=self.methods
            )

            async def begin() -> Reply:
                toolbox.thread = THREADS.call_queue()
                # From here on: an environment that is never reset is none of this episode.
                environment = episode.environment = await toolbox.ask(f"{name}()", self.make)
                functions.update((method, getattr(environment, method)) for method in self.methods)
                row = {"prompt": list(task.messages) or question_of(task), **task.columns}
                what = f"{type(environment).__name__}.reset"
                check_removed(environment.reset, what, task, gets_seed=False)
                columns = named_keywords(environment.reset, row)
                try:
                    said = await toolbox.ask(what, environment.reset, **columns)
                except EnvError as error:
                    cause = error.__cause__ or error
                    raise lacks_column(environment.reset, what, task, cause) or error from cause
                await read_extras()
                last = _history_and_last(task)[1]
                content = _joined(last["content"], "" if said is None else _content(said))
                return [{**last, "content": content}] if content else ""

            async def score(messages: list[Message]) -> float | None:
                environment, reward = episode.environment, None
                named = type(environment).__name__
                get_reward = getattr(environment, "get_reward", None)
                if self.reward is not None:
                    reward = await toolbox.ask(f"the reward of {named}", self.reward, environment)
                elif get_reward is not None:
                    reward = await toolbox.ask(f"{named}.get_reward", get_reward)
                await read_extras()
                return reward

            async def read_extras() -> None:
                """Read the extras on the environment's thread: a property may run any code."""
                extras = functools.partial(getattr, episode.environment, "extras", None)
                episode.extras = await toolbox.ask(f"{name}.extras", extras)

            episode = ToolEpisode(toolbox, begin, score)
            return episode

        return BoundSource(
            make,
            name,
            lambda task: _history_and_last(task)[0],
            keeps_last=True,
            spoken=functools.partial(spoken_messages, processor, parse),
            tools=self.tools,
        )


def _history_and_last(task: RolloutTask) -> tuple[list[Message], Message]:
    """Return the history, and the last message, to which the environment's text is added."""
    history = list(task.messages)
    if not any(message["role"] == "user" for message in history):
        return history, {"role": "user", "content": question_of(task)}
    last = history[-1].get("content")
    if history[-1]["role"] == "user" and (isinstance(last, str) or images_of(last)):
        return history[:-1], history[-1]
    return history, {"role": "user", "content": ""}


def _content(value: Any) -> Result:
    """Return a result as TRL writes it: content blocks from a list, else its `str`."""
    if (content := image_content(value)) is not None:
        return content
    if not isinstance(value, list):
        return str(value)
    if not all(isinstance(b, dict) and isinstance(b.get("text"), str) for b in value):
        raise EnvError(
            "a tool or reset returned a list whose items are not text or image blocks\n"
            'hint: return a string, or [{"type": "image", "image": picture}, …]'
        )
    return "".join(block["text"] for block in value)


def _joined(first: Result, second: Result) -> Result:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    blocks = [[{"type": "text", "text": c}] if isinstance(c, str) else c for c in (first, second)]
    return [block for of in blocks for block in of if block.get("text") != ""]


_TRL_TEXTS = ToolTexts(
    result=_content,
    error=lambda error: str({"error": str(error)}),
    unknown=lambda name, names: f"Tool {name} not found.",
)
