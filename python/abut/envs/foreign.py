"""The guards around environments: whatever the user's code raises or returns, it is named.

Invariant: nothing that an environment does comes out of here but an `EnvError` that says which of
its methods did what, and what to do; `SystemExit` of an environment ends no training.
"""

import asyncio
import inspect
import math
import traceback
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from abut.concurrency.loop import is_cancelled
from abut.concurrency.threads import THREADS, CallQueue
from abut.envs.env import AsyncEnv, Env, EnvLoop, LoopBound, Reply
from abut.envs.task import EnvFactory, EnvPool, RolloutTask
from abut.errors import EnvError, text_of, trace_of
from abut.messages import is_text, json_copy, strange_block

_SET = {
    "alive": "set self.alive: True in reset, False in the step that ends the episode",
    "reward": "set self.reward in reset and step; None is no score",
}
"""The hints for attributes that an environment lacks."""

ENV = ("an environment", "RolloutConfig.reset_timeout_s bounds a reset, step_timeout_s a step")
AGENT = ("an agent", "RolloutConfig.rollout_timeout_s bounds a rollout")
"""For hints: who runs the user's code, and the setting that does what its SIGALRM was to do."""


def make_env(factory: EnvFactory) -> Env | AsyncEnv:
    """Build one environment; whatever it raises becomes an `EnvError` that names the factory."""
    name = getattr(factory, "__name__", repr(factory))
    try:
        env = factory()
    except BaseException as error:  # SystemExit of an environment does not end training
        raise raised_by_env(f"{name}()", error) from error
    return _with_methods(env, f"{name}()")


def raised_by_env(what: str, error: BaseException, *, runs: tuple[str, str] = ENV) -> EnvError:
    """Return the error of a call of an environment; an `EnvError` as it is."""
    if isinstance(error, EnvError):
        error.trace = error.trace or trace_of(error)
        return error
    hint = no_signals_hint(error, *runs)
    return placed(EnvError(f"{what} raised {text_of(error)}{hint}"), trace_of(error))


def no_signals_hint(error: BaseException, who: str, cure: str) -> str:
    """Return the hint for code that asks for SIGALRM, which only the main thread gets; else ""."""
    if isinstance(error, ValueError) and "only works in main thread" in text_of(error):
        return f"\nhint: {who} does not run on the main thread, so it gets no signals; {cure}"
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
    """Return where the foreign code stands that the thread of a queue runs; None if it runs none.

    Args:
        calls: the queue.
        behind: our files that call foreign code.
    """
    frame = None if calls is None else calls.frame()
    frames = traceback.extract_stack(frame) if frame is not None else []
    ours = [at for at, frame in enumerate(frames) if Path(frame.filename) in behind]
    theirs = frames[ours[-1] + 1 :] if ours else []
    if not theirs:
        return None
    return f"It is here (most recent call last):\n{''.join(traceback.format_list(theirs))}"


async def lend_env(pool: EnvPool, task: "RolloutTask") -> Env | AsyncEnv:
    """Wait for an environment of a pool; whatever that raises becomes an `EnvError`."""
    return _with_methods(await lent_by(pool, task), f"{type(pool).__name__}.lend")


async def lent_by(pool: Any, task: "RolloutTask") -> Any:
    """Wait for what a pool lends, of environments or of agents; its errors become `EnvError`s."""
    try:
        return await pool.lend(task)
    except EnvError:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        raise raised_by_env(f"{type(pool).__name__}.lend", error) from error


def close_env(env: Any) -> None:
    """Close an environment that no loop runs, if it has a `close`."""
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
    """Call the user's function where it holds up nothing, and return its result.

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


def is_async(env: Any) -> bool:
    """Return True if `step` is a coroutine function.

    Raises:
        EnvError: the env cannot say.
    """
    return inspect.iscoroutinefunction(env_attribute(env, "step"))


def is_surely_async(env: Any) -> bool:
    """Return True if the class is known to be async, without running its code; see `is_async`."""
    return inspect.iscoroutinefunction(inspect.getattr_static(type(env), "step", None))


def own_loop(env: Any) -> EnvLoop | None:
    """Return the loop that an asynchronous environment must be played on; None: the engine's."""
    return env.loop if issubclass(type(env), LoopBound) else None


def env_attribute(env: Any, name: str) -> Any:
    """Return an attribute of an env, None where it has none.

    Raises:
        EnvError: to look at it raises.
    """
    try:
        return getattr(env, name, None)
    except BaseException as error:  # a property, or `__getattr__`
        raise raised_by_env(f"{type(env).__name__}.{name}", error) from error


def check_reply(env: Any, method: str, returned: Any) -> tuple[Any, Reply]:
    """Return `(env, reply)` as it was returned, or say what is wrong with it.

    Raises:
        EnvError: it is not a pair of an environment and a reply.
    """
    name = f"{type(env).__name__}.{method}"
    check_no_awaitable(env, method, returned)
    if not isinstance(returned, tuple) or len(returned) != 2:
        hint = "return (self, text)"
        if isinstance(returned, tuple) and len(returned) == 5:
            hint = "a Gym step returns five values; abut.gym.GymEnv plays such objects"
        raise placed_in(
            env, method, f"{name} must return (env, reply), got {_shape(returned)}", hint
        )
    following, reply = returned
    for attribute in ("reward", "alive", "step"):
        if not _has(following, attribute):
            what = f"{name} returned {type(following).__name__} without attribute {attribute!r}"
            hint = _SET.get(attribute, "")
            if not hint or not _has(following, "step"):
                hint = "the first of the pair is the environment that goes on, usually self"
            raise placed_in(env, method, what, hint)
    if isinstance(reply, str):
        return following, reply
    if isinstance(reply, list) and reply and all(map(_is_block, reply)):
        reply = [{"role": "user", "content": reply}]
    for message in reply if isinstance(reply, list) else ():
        block = strange_block(message.get("content") if isinstance(message, dict) else None)
        if block is not None:
            raise placed_in(
                env,
                method,
                f"{name} replied with content of the type {block!r}, and abut is text only",
                "reply with text, or with blocks of the type 'text' alone",
            )
    if not isinstance(reply, list) or not all(_is_message(message) for message in reply):
        raise placed_in(env, method, *_no_reply(name, reply))
    # A copy: the environment may use its message again for the next turn.
    try:
        return following, [json_copy(message) for message in reply]
    except BaseException as error:  # a message that holds itself, a value that has no text
        raise placed(
            EnvError(f"{name} replied with a message that raised {text_of(error)}"), trace_of(error)
        ) from error


def check_no_awaitable(env: Any, method: str, returned: Any) -> None:
    """Refuse what one method of an environment returns where the others are not async.

    Raises:
        EnvError: it is an awaitable.
    """
    if not isinstance(returned, Awaitable):
        return
    if inspect.iscoroutine(returned):
        returned.close()
    raise placed_in(
        env,
        method,
        f"{type(env).__name__}.{method} returned an awaitable",
        "make reset and step both `async def`",
    )


def env_alive(env: Any) -> bool:
    """Return True while the environment goes on.

    Raises:
        EnvError: the env cannot say.
    """
    alive = env_attribute(env, "alive")
    if alive is not None and not callable(alive):
        try:
            return bool(alive)
        except BaseException as error:  # an array of several values
            raise raised_by_env(f"{type(env).__name__}.alive", error) from error
    raise placed_in(
        env,
        "step",
        f"{type(env).__name__}.alive must be True or False, got {_shape(alive)}",
        "set it in reset and step; a method needs @property",
    )


def env_reward_value(env: Any) -> float | None:
    """Return the env's reward; None and NaN are no score.

    Raises:
        EnvError: the reward is no number, or infinite.
    """
    reward = env_attribute(env, "reward")
    if reward is None:
        return None
    try:
        value = float(reward)
    except OverflowError:
        value = math.inf
    except BaseException:
        what = f"{type(env).__name__}.reward must be a number or None, got {_shape(reward)}"
        raise placed_in(env, "step", what) from None
    if math.isinf(value):
        raise placed_in(
            env,
            "step",
            f"{type(env).__name__}.reward is {value}, from which no baseline can be taken",
            "set it to None for an episode without a score",
        )
    return value


def _with_methods(env: Any, source: str) -> Env | AsyncEnv:
    for method in ("reset", "step"):
        if not (_has(env, method) and callable(getattr(env, method))):
            hint = "an Env has reset(seed) and step(action), and attributes reward and alive"
            if method == "step" and env is not None:
                hint += (
                    "; a factory of environments for TRL's environment_factory needs "
                    "abut.trl.from_environment_factory(factory)"
                )
            raise EnvError(
                f"{source} returned {type(env).__name__}, which has no method {method!r}\n"
                f"hint: {hint}"
            )
    return env  # type: ignore[no-any-return]


def _has(env: Any, attribute: str) -> bool:
    try:
        return hasattr(env, attribute)
    except BaseException as error:
        raise raised_by_env(f"{type(env).__name__}.{attribute}", error) from error


def _no_reply(name: str, reply: Any) -> tuple[str, str]:
    """Return what is wrong with a reply that is neither text nor messages, and what to do."""
    for number, message in enumerate(reply if isinstance(reply, list) else ()):
        if isinstance(message, dict) and isinstance(message.get("role"), str):
            if message.get("content") is None:
                said = f"message {number} of the reply of {name} has no content"
                return said, 'a message is {"role": "tool", "content": "text"}; "" says nothing'
            if not _is_message(message):
                content = _shape(message["content"])
                said = f"message {number} of the reply of {name} must have text, got {content}"
                return said, "json.dumps(value) makes a text of it"
    said = f"{name} must reply with a str or a list of messages, got {_shape(reply)}"
    if isinstance(reply, dict) and "role" in reply:
        return said, "a single message needs a list around it: return self, [message]"
    if isinstance(reply, dict | list):
        return said, (
            "json.dumps(observation) makes a text of it; a message is "
            '{"role": "user", "content": "text"}'
        )
    return said, "return (self, text), or a list of messages"


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and is_text(message.get("content"))
    )


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and "type" in value and "role" not in value


def _shape(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}: {[type(v).__name__ for v in value]}"
    try:
        return f"{type(value).__name__}: {str(value)[:80]!r}"
    except BaseException:  # its `__str__` is foreign code
        return type(value).__name__
