"""The tools of one episode: runs the calls of a turn and answers each of them.

Invariant: text of the policy never raises an error, and a tool cannot delay its turn past the
deadline. Each call is answered with one `role: tool` message, in the order of the calls, and then
each malformed call; one message answers all calls over the limit. `ToolAnswers` writes them in the
form for the chat template. A message never has a tool name that the policy made up, because only
contents are prevented from becoming scaffold.
"""

import asyncio
import inspect
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from abut.concurrency.loop import is_cancelled
from abut.concurrency.loop_watch import wait_sparing
from abut.concurrency.threads import THREADS, CallQueue
from abut.envs.foreign import call_anywhere, no_signals_hint, raised_by_env
from abut.errors import EnvError, InvalidAction, text_of, trace_of
from abut.messages import Message, image_content
from abut.notices import Once
from abut.tool_calls.parsed import Parse, ParsedCalls, ToolCall
from abut.tools.tool_messages import ToolAnswers

logger = logging.getLogger(__name__)

T = TypeVar("T")
Function: TypeAlias = Callable[..., Any]
Result: TypeAlias = str | list[dict[str, Any]]
"""The content that answers a call: a string, or blocks with images."""

NO_TOOL = "error"
"""The name in answers to calls without the name of a tool."""


@dataclass(frozen=True)
class ToolRules:
    """The limits of the calls of every turn."""

    on_malformed: Literal["feed_back", "end"]
    timeout_s: float
    max_calls: int
    max_result_chars: int | None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is invalid; names its value and the values that are possible.
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
    """Turns the results of calls into text for the policy; results may show images as well."""

    result: Callable[[Any], Result]
    error: Callable[[BaseException | str], str]
    unknown: Callable[[str, Iterable[str]], str]
    """Returns the error for an unknown tool, from its name and the names of the tools."""


def _json_or_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):  # a tuple for a key, or a list that holds itself
        return str(value)


def _image_or_text(value: Any) -> Result:
    return image_content(value) or _json_or_text(value)


def _json_error(error: BaseException | str) -> str:
    return _json_or_text({"error": error if isinstance(error, str) else text_of(error)})


def _unknown(name: str, names: Iterable[str]) -> str:
    return f"The tool {name!r} does not exist. Tools: {', '.join(names)}"


@dataclass
class ToolCounts:
    """The calls of one episode by name, counted as in TRL's own tool loop."""

    calls: Counter[str] = field(default_factory=Counter)
    """Well-formed calls, including calls of unknown tools."""
    failures: Counter[str] = field(default_factory=Counter)
    """Calls that were answered with an error."""


class ToolFaults:
    """Logs the first exception of each tool, which otherwise only the policy would see."""

    def __init__(self, maker: str) -> None:
        """`maker` is the function with the argument `timeout_s`, for a hint."""
        self._maker = maker
        self._once = Once(logger)

    def note(self, name: str, error: BaseException) -> None:
        """Log a tool's exception; may be called on any thread."""
        if not self._once.is_first(name):
            return
        cure = f"{self._maker}(timeout_s=…) limits how long the calls of a turn may take"
        hint = no_signals_hint(error, "a tool", cure)
        logger.warning(
            "the tool %s raised %s\n%s\nThe policy gets this error as the result, and abut does "
            "not log later exceptions of %s%s",
            name,
            text_of(error),
            trace_of(error),
            name,
            hint,
        )


JSON_TEXTS = ToolTexts(result=_image_or_text, error=_json_error, unknown=_unknown)
"""Strings unchanged, images as blocks, all else as JSON."""


class _ErrorText(str):
    """The answer to an exception; the loop counts it, not the tool's thread."""

    __slots__ = ()


async def _outcome(awaited: Awaitable[Any]) -> Callable[[], Any]:
    """Wait for an awaitable; return a function that returns or raises its outcome."""
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
        parse: finds the calls in an action.
        answers: writes the answers in the form for the template.
        rules: limits, and how to treat malformed calls.
        faults: logs the exceptions of tools.
        texts: turns results and errors into text.
        own_thread: the names of sync functions that run on `thread`, one after the other in the
            order of the calls, such as the methods of one object. All others run at the same time.

    Attributes:
        thread: the thread for `own_thread`, set before one of its functions is called; its owner
            returns it.
        counts: the calls so far.
    """

    thread: CallQueue | None = None

    def __init__(
        self,
        functions: Mapping[str, Function],
        parse: Parse,
        answers: ToolAnswers,
        rules: ToolRules,
        faults: ToolFaults,
        texts: ToolTexts = JSON_TEXTS,
        own_thread: Collection[str] = (),
    ) -> None:
        self._functions = functions
        self._parse = parse
        self._answers = answers
        self._rules = rules
        self._faults = faults
        self.counts = ToolCounts()
        self._texts = texts
        self._own_thread = frozenset(own_thread)

    async def answer(self, action: str) -> list[Message] | None:
        """Run the calls of an action; return None if it has none, or if a malformed one ends all.

        Raises:
            EnvError: a tool raised it, because the environment failed.
        """
        parsed = await THREADS.ask(lambda: self._parse(action))
        if not parsed.calls and not parsed.malformed:
            return None
        if parsed.malformed and self._rules.on_malformed == "end":
            return None
        taken = parsed.calls[: self._rules.max_calls]
        self.counts.calls.update(call.name for call in parsed.calls)
        self.counts.failures.update(call.name for call in parsed.calls[len(taken) :])
        running = [asyncio.ensure_future(self._run(call)) for call in taken]
        try:
            if running:
                await wait_sparing(running, self._rules.timeout_s)
        finally:
            for task in running:
                task.cancel()
        if errors := [e for task in running if task.done() and (e := task.exception())]:
            raise errors[0]
        texts = list(map(self._text_by_the_deadline, taken, running))
        answers = [*map(self._message, taken, texts), *self._not_run(parsed)]
        return await THREADS.ask(lambda: self._answers.written(answers))

    async def ask(
        self, what: str, function: Callable[..., T | Awaitable[T]], /, *args: Any, **kwargs: Any
    ) -> T:
        """Call a function that is not a tool, sync or async, on `thread` if it is set.

        Raises:
            EnvError: the function raised an exception; `what` names the function.
        """
        try:
            returned: T = await call_anywhere(function, *args, calls=self.thread, **kwargs)
            return returned
        except EnvError:
            raise
        except Exception as error:
            raise raised_by_env(what, error) from error

    async def _run(self, call: ToolCall) -> Result:
        function = self._functions.get(call.name)
        if function is None:
            self.counts.failures[call.name] += 1
            return self._texts.error(self._texts.unknown(call.name, self._functions))
        # Making a text may take long too, and its loop is that of all episodes: on a thread.
        start = partial(self._text_or_awaitable, call.name, partial(function, **call.arguments))
        text: Result | Awaitable[Any]
        if inspect.iscoroutinefunction(function):
            text = start()
        else:
            own = self.thread if call.name in self._own_thread else None
            text = await (own or THREADS).ask(start)
        while not isinstance(text, str | list):
            outcome = await _outcome(text)
            text = await THREADS.ask(partial(self._text_or_awaitable, call.name, outcome))
        if isinstance(text, _ErrorText):
            self.counts.failures[call.name] += 1
        return text

    def _text_or_awaitable(self, name: str, returned: Callable[[], Any]) -> Result | Awaitable[Any]:
        """Return a result as content for the policy, or the awaitable that a tool returned."""
        try:
            value = returned()
            return value if inspect.isawaitable(value) else self._texts.result(value)
        except EnvError:
            raise
        except InvalidAction as error:  # the policy's mistake, not the tool's
            return _ErrorText(self._texts.error(str(error)))
        except BaseException as error:  # SystemExit of a tool does not end training
            self._faults.note(name, error)
            return _ErrorText(self._texts.error(error))

    def _text_by_the_deadline(self, call: ToolCall, task: "asyncio.Task[Result]") -> Result:
        if task.done():
            return task.result()
        self.counts.failures[call.name] += 1
        return self._texts.error(f"TimeoutError: no answer within {self._rules.timeout_s:g} s")

    def _not_run(self, parsed: ParsedCalls) -> list[Message]:
        limit, malformed = self._rules.max_calls, parsed.malformed
        over = len(parsed.calls) - limit
        texts = [f"Not run: the last {over} calls. At most {limit} in one turn"] * (over > 0)
        texts += [f"Malformed tool call: {call.error}" for call in malformed[:limit]]
        texts += [f"And {len(malformed) - limit} more"] * (len(malformed) > limit)
        return [
            {"role": "tool", "name": NO_TOOL, "content": self._bounded(self._texts.error(text))}
            for text in texts
        ]

    def _message(self, call: ToolCall, text: Result) -> Message:
        name = call.name if call.name in self._functions else NO_TOOL
        message = {"role": "tool", "name": name, "content": self._bounded(text)}
        return message if call.id is None else message | {"tool_call_id": call.id}

    def _bounded(self, text: Result) -> Result:
        if isinstance(text, list):
            return [b if "text" not in b else {**b, "text": self._bounded(b["text"])} for b in text]
        limit = self._rules.max_result_chars
        if limit is None or len(text) <= limit:
            return text
        return f"{text[:limit]}\n[the first {limit} of {len(text)} characters]"
