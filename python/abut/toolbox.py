"""The tools of one episode: the calls of a turn are run, and each is answered.

Invariant: nothing that a policy writes raises, and no tool holds up its turn past the deadline.
Each call is answered by one `role: tool` message, in the order of the calls, then each malformed
one; those over the limit by one message for all. `ToolAnswers` gives them the form that the chat
template takes. A name that the policy made up never gets into a message: only contents are kept
from becoming scaffold.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from abut.error_text import text_of
from abut.errors import EnvError
from abut.messages import Message
from abut.threads import Mailbox, SharedThreads, is_cancelled
from abut.tool_answers import ToolAnswers
from abut.tool_calls import Parse, ParsedCalls, ToolCall

T = TypeVar("T")
Function: TypeAlias = Callable[..., Any]

NO_TOOL = "error"
"""The name in answers to what called no tool."""


@dataclass(frozen=True)
class ToolRules:
    """What holds for the calls of every turn."""

    on_malformed: Literal["feed_back", "end"]
    timeout_s: float
    max_calls: int
    max_result_chars: int | None

    def __post_init__(self) -> None:
        """Refuse what no turn could be played by.

        Raises:
            ValueError: names the setting, its value and what it may be.
        """
        longest = self.max_result_chars
        for name, holds, allowed in (
            ("on_malformed", self.on_malformed in ("feed_back", "end"), "'feed_back' or 'end'"),
            ("timeout_s", self.timeout_s > 0, "more than 0 seconds"),
            ("max_calls", self.max_calls >= 1, "at least 1"),
            ("max_result_chars", longest is None or longest >= 1, "at least 1, or None"),
        ):
            if not holds:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be {allowed}")


@dataclass(frozen=True)
class ToolTexts:
    """How the policy is told."""

    result: Callable[[Any], str]
    error: Callable[[BaseException | str], str]
    unknown: Callable[[str, Iterable[str]], str]
    """What is wrong with a name, from it and those that there are: an `error`."""


def _json_or_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):  # a tuple for a key, or a list that holds itself
        return str(value)


def _json_error(error: BaseException | str) -> str:
    return _json_or_text({"error": error if isinstance(error, str) else text_of(error)})


def _unknown(name: str, names: Iterable[str]) -> str:
    return f"There is no tool {name!r}. Tools: {', '.join(names)}"


JSON_TEXTS = ToolTexts(result=_json_or_text, error=_json_error, unknown=_unknown)
"""Text as it is, all else as JSON."""


async def _outcome(awaited: Awaitable[Any]) -> Callable[[], Any]:
    """Wait; return what returns or raises what came of it."""
    try:
        value = await awaited
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise  # ours: the deadline. Any other is the tool's.
        raised = error

        def outcome() -> Any:
            raise raised

        return outcome
    return lambda: value


class Toolbox:
    """Runs the calls of one episode, on the loop of asynchronous environments.

    Args:
        functions: by name, sync or async.
        parse: takes an action apart.
        answers: gives what answers it the form that the template takes.
        rules: limits, and what becomes of malformed calls.
        threads: for what is sync.
        texts: how results and errors are told.
    """

    def __init__(
        self,
        functions: Mapping[str, Function],
        parse: Parse,
        answers: ToolAnswers,
        rules: ToolRules,
        threads: SharedThreads,
        texts: ToolTexts = JSON_TEXTS,
    ) -> None:
        self._functions = functions
        self._parse = parse
        self._answers = answers
        self._rules = rules
        self._texts = texts
        self._shared = threads
        self._threads = threads.enter()
        self._mailbox: Mailbox | None = None

    async def answer(self, action: str) -> list[Message] | None:
        """Run what an action calls; None where it calls nothing, or a malformed call ends it all.

        Raises:
            EnvError: a tool says that it cannot go on, whatever the policy does.
        """
        parsed = await self._on_thread(lambda: self._parse(action))
        if not parsed.calls and not parsed.malformed:
            return None
        if parsed.malformed and self._rules.on_malformed == "end":
            return None
        taken = parsed.calls[: self._rules.max_calls]
        running = [asyncio.ensure_future(self._run(call)) for call in taken]
        try:
            if running:
                await asyncio.wait(running, timeout=self._rules.timeout_s)
        finally:
            for task in running:
                task.cancel()
        if errors := [e for task in running if task.done() and (e := task.exception())]:
            raise errors[0]
        told = [self._told(task) for task in running]
        answers = [*map(self._message, taken, told), *self._refused(parsed)]
        return await self._on_thread(lambda: self._answers.written(answers))

    async def call(
        self, function: Callable[..., T | Awaitable[T]], /, *args: Any, **kwargs: Any
    ) -> T:
        """Call a function, sync or async, without holding up the loop."""
        if inspect.iscoroutinefunction(function):
            returned: T | Awaitable[T] = function(*args, **kwargs)
        else:
            returned = await self._on_thread(lambda: function(*args, **kwargs))
        return await returned if inspect.isawaitable(returned) else returned

    async def ask(
        self, what: str, function: Callable[..., T | Awaitable[T]], /, *args: Any, **kwargs: Any
    ) -> T:
        """Call what is no tool.

        Raises:
            EnvError: it raises; `what` names it.
        """
        try:
            return await self.call(function, *args, **kwargs)
        except EnvError:
            raise
        except Exception as error:
            raise EnvError(f"{what} raised {text_of(error)}") from error

    def close(self) -> None:
        """Leave the threads to the other episodes."""
        self._shared.leave()

    async def _run(self, call: ToolCall) -> str:
        function = self._functions.get(call.name)
        if function is None:
            return self._texts.error(self._texts.unknown(call.name, self._functions))
        # Making a text may take long too, and its loop is that of all episodes: on a thread.
        start = partial(self._said, partial(function, **call.arguments))
        is_async = inspect.iscoroutinefunction(function)
        said = start() if is_async else await self._on_thread(start)
        while not isinstance(said, str):
            said = await self._on_thread(partial(self._said, await _outcome(said)))
        return said

    def _said(self, returned: Callable[[], Any]) -> str | Awaitable[Any]:
        """What the policy is told of what a tool returned, or what there is to wait for."""
        try:
            value = returned()
            return value if inspect.isawaitable(value) else self._texts.result(value)
        except EnvError:
            raise
        except BaseException as error:  # SystemExit of a tool does not end training
            return self._texts.error(error)

    def _told(self, task: "asyncio.Task[str]") -> str:
        if task.done():
            return task.result()
        return self._texts.error(f"TimeoutError: no answer within {self._rules.timeout_s:g} s")

    def _refused(self, parsed: ParsedCalls) -> list[Message]:
        limit, malformed = self._rules.max_calls, parsed.malformed
        over = len(parsed.calls) - limit
        texts = [f"Not run: the last {over} calls. At most {limit} in one turn"] * (over > 0)
        texts += [f"Malformed tool call: {call.error}" for call in malformed[:limit]]
        texts += [f"And {len(malformed) - limit} more"] * (len(malformed) > limit)
        return [
            {"role": "tool", "name": NO_TOOL, "content": self._bounded(self._texts.error(text))}
            for text in texts
        ]

    def _message(self, call: ToolCall, text: str) -> Message:
        name = call.name if call.name in self._functions else NO_TOOL
        message = {"role": "tool", "name": name, "content": self._bounded(text)}
        return message if call.id is None else message | {"tool_call_id": call.id}

    def _bounded(self, text: str) -> str:
        limit = self._rules.max_result_chars
        if limit is None or len(text) <= limit:
            return text
        return f"{text[:limit]}\n[the first {limit} of {len(text)} characters]"

    async def _on_thread(self, call: Callable[[], T]) -> T:
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop())
        return await self._threads.ask(call, self._mailbox)
