"""Calls of foreign code: on which thread or loop it runs, how it is closed, and its errors.

Invariant: whatever foreign code raises becomes an `EnvError` that names the code and its place.
"""

import asyncio
import inspect
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from abut.concurrency.loop import is_cancelled
from abut.concurrency.threads import THREADS, CallQueue
from abut.envs.task import RolloutTask
from abut.errors import EnvError, text_of, trace_of

ENV = ("an environment", "RolloutConfig.reset_timeout_s limits a reset, step_timeout_s a step")
AGENT = ("an agent", "RolloutConfig.rollout_timeout_s limits a rollout")
"""For hints: what runs the user's code, and the setting to use instead of SIGALRM."""


def raised_by_env(what: str, error: BaseException, *, runs: tuple[str, str] = ENV) -> EnvError:
    """Return an error of an environment's code as an `EnvError`; an `EnvError` unchanged."""
    if isinstance(error, EnvError):
        error.trace = error.trace or trace_of(error)
        return error
    hint = no_signals_hint(error, *runs)
    return placed(EnvError(f"{what} raised {text_of(error)}{hint}"), trace_of(error))


def no_signals_hint(error: BaseException, who: str, cure: str) -> str:
    """Return the hint for code that uses SIGALRM, which only the main thread can; else ""."""
    if isinstance(error, ValueError) and "only works in main thread" in text_of(error):
        return f"\nhint: {who} does not run on the main thread, so it cannot use signals; {cure}"
    return ""


def placed(error: EnvError, trace: str) -> EnvError:
    """Return the same error with the place in the environment that it comes from."""
    error.trace = trace
    return error


def placed_in(env: Any, method: str, what: str, hint: str | None = None) -> EnvError:
    """Return an error about what a method returned or left behind, with the place of the method."""
    return placed(EnvError(what + f"\nhint: {hint}" * (hint is not None)), place_of(env, method))


def place_of(env: Any, method: str) -> str:
    """Return file and line of a method, without running any of the environment's code."""
    made = env if inspect.isclass(env) else type(env)
    return place_of_code(inspect.getattr_static(made, method, None))


def place_of_code(function: Any) -> str:
    """Return file and line of a function, `""` if it is not one of Python's."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return ""
    return f'  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_qualname}'


def stands_at(calls: CallQueue | None, *, behind: Collection[Path]) -> str | None:
    """Return where the foreign code is that a queue's thread runs now; None if it runs none.

    Args:
        calls: the queue.
        behind: abut's files that call foreign code.
    """
    frame = None if calls is None else calls.frame()
    frames = traceback.extract_stack(frame) if frame is not None else []
    ours = [at for at, frame in enumerate(frames) if Path(frame.filename) in behind]
    theirs = frames[ours[-1] + 1 :] if ours else []
    if not theirs:
        return None
    return f"It is now here (most recent call last):\n{''.join(traceback.format_list(theirs))}"


async def lent_by(pool: Any, task: RolloutTask) -> Any:
    """Wait for a pool to lend an environment or agent; errors become `EnvError`s."""
    try:
        return await pool.lend(task)
    except EnvError:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        raise raised_by_env(f"{type(pool).__name__}.lend", error) from error


def close_env(env: Any) -> None:
    """Close an environment that does not run on a loop, if it has a `close`."""
    close = getattr(env, "close", None)
    if inspect.iscoroutinefunction(close):
        asyncio.run(close())
    elif close is not None:
        close()


async def close_async_env(env: Any) -> None:
    """Close an environment on its loop, if it has a `close`; a synchronous one runs on a thread."""
    if (close := getattr(env, "close", None)) is not None:
        await call_anywhere(close)


async def call_anywhere(
    function: Callable[..., Any], /, *args: Any, calls: CallQueue | None = None, **keywords: Any
) -> Any:
    """Call the user's function where it does not block anything, and return its result.

    Args:
        function: a coroutine function is called on the running loop, any other one on a thread.
        args: its arguments by position.
        calls: the queue of the thread; None: any thread.
        keywords: its arguments by name.
    """
    call = partial(function, *args, **keywords)
    if inspect.iscoroutinefunction(function):
        returned = call()
    else:
        returned = await (calls or THREADS).ask(call)
    return await returned if inspect.isawaitable(returned) else returned


_LENT: dict[int, CallQueue] = {}
"""The queues of environments that pools lend, by the addresses of the environments."""
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_LENT.clear)  # a forked child has none of these threads


def queue_of(env: Any) -> CallQueue:
    """Return the queue of an environment that a pool lends.

    The environment keeps one thread as long as it lives, in all rollouts that play it.

    Raises:
        EnvError: the environment cannot be weakly referenced, so abut could not tell when it ends.
    """
    if (calls := _LENT.get(id(env))) is not None:
        return calls
    calls = THREADS.call_queue()
    try:
        weakref.finalize(env, _forget, id(env)).atexit = False
    except TypeError as error:
        calls.give_back()
        raise EnvError(
            f"a pool lent a {type(env).__name__} that cannot be weakly referenced\n"
            'hint: add "__weakref__" to its __slots__'
        ) from error
    _LENT[id(env)] = calls
    return calls


def _forget(address: int) -> None:
    if (calls := _LENT.pop(address, None)) is not None:
        calls.give_back()
