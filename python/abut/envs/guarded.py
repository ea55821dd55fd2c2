"""Guards one environment of the user during an episode, wherever its code runs.

Invariant: a call of the environment ends in a value, an `EnvError` that names the method, or an
`UnplayableRow`. `SystemExit` of an environment does not end training or an actor. The caller
decides on which thread or loop this code runs, and reads the environment only there.
"""

import inspect
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import Any, NamedTuple

from abut.envs.attributes import (
    Extras,
    env_alive,
    env_attribute,
    env_extras,
    env_reward_value,
    shape_of,
)
from abut.envs.env import AsyncEnv, Env, EnvLoop, LoopBound, Reply
from abut.envs.foreign import lent_by, placed, placed_in, raised_by_env
from abut.envs.signatures import UnplayableRow, accepted_keywords, check_removed, lacks_column
from abut.envs.task import EnvFactory, EnvPool, RolloutTask
from abut.errors import EnvError, ImageError, text_of, trace_of
from abut.messages import (
    IMAGE_BLOCKS,
    is_content,
    json_copy,
    refusal_of,
    strange_block,
    with_images,
)

_SET = {
    "alive": "set self.alive to True in reset, and to False in the step that ends the episode",
    "reward": "set self.reward in reset and step; None means no score",
}
"""The hints for attributes that an environment lacks."""


class EnvState(NamedTuple):
    """The reply of an environment, and its attributes after it."""

    reply: Reply
    alive: bool
    reward: float | None
    """NaN stays NaN, so that the engine can warn about it."""
    scores_episode: bool
    """True if the environment has `score_episode`, which gets the whole episode at its end."""
    extras: Extras = MappingProxyType({})


async def _as_it_is(awaiting: Callable[[], Awaitable[Any]]) -> Any:
    return await awaiting()


class GuardedEnv:
    """One environment, from its constructor to the end of its episode.

    Args:
        task: its row has the columns that `reset` needs.

    Attributes:
        env: the user's object; None until it was created or lent.
        extras: the environment's extras after its last call.
    """

    def __init__(self, task: RolloutTask) -> None:
        self._task = task
        self.env: Any = None
        self.extras: Extras = {}

    def name_of(self, method: str) -> str:
        """Return the name of a method in errors."""
        return f"{type(self.env).__name__}.{method}"

    def reset_keywords(self) -> dict[str, Any]:
        """Return the keywords for `reset`, without the seed.

        Raises:
            EnvError: `reset` cannot be read.
            UnplayableRow: `reset` takes a column that the trainer removed from the row.
        """
        reset = env_attribute(self.env, "reset")
        check_removed(reset, self.name_of("reset"), self._task)
        return accepted_keywords(reset, self._task.columns, self._task.episode_seed)

    def call(self, method: str, /, *args: Any, **keywords: Any) -> Any:
        """Call a method here, and return its result."""
        try:
            return getattr(self.env, method)(*args, **keywords)
        except BaseException as error:
            raise self._raised(method, error) from error

    async def call_async(
        self,
        method: str,
        /,
        *args: Any,
        wait: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]] = _as_it_is,
        **keywords: Any,
    ) -> Any:
        """Call a method of an asynchronous environment, on its loop.

        Args:
            method: is called with `args` and `keywords`.
            args: by position.
            wait: awaits what the method returns.
            keywords: by name.
        """
        try:
            returned = getattr(self.env, method)(*args, **keywords)
            is_async = inspect.isawaitable(returned)
            if is_async:
                returned = await wait(lambda: returned)
        except BaseException as error:
            raise self._raised(method, error) from error
        if not is_async:
            raise EnvError(
                f"{self.name_of(method)} is not async, but step is\n"
                "hint: make reset and step both `async def`"
            )
        return returned

    def first_reply(self, returned: Any) -> Reply:
        """Check the result of `reset`.

        Raises:
            EnvError: the result is invalid, or the episode has already ended.
        """
        self.env, reply = check_reply(self.env, "reset", returned)
        if not env_alive(self.env):
            raise placed_in(
                self.env,
                "reset",
                f"{type(self.env).__name__}.alive is False after reset\nhint: reset must set "
                "alive to True, even if the environment was used before",
            )
        self.extras = env_extras(self.env)
        return reply

    def said(self, method: str, returned: Any) -> EnvState:
        """Check the result of `reset` or `step`, and read the environment's attributes.

        Raises:
            EnvError: the result or an attribute is invalid.
        """
        self.env, reply = check_reply(self.env, method, returned)
        return self._state(reply)

    def scored(self, returned: Any = None) -> EnvState:
        """Read the environment's attributes after `score_episode`, which returned this.

        Raises:
            EnvError: `score_episode` is async, but the others are not.
        """
        check_no_awaitable(self.env, "score_episode", returned)
        return self._state("")

    def _state(self, reply: Reply) -> EnvState:
        reward = env_reward_value(self.env)
        scores = env_attribute(self.env, "score_episode") is not None
        alive = env_alive(self.env)
        self.extras = env_extras(self.env)
        return EnvState(reply, alive, reward, scores, self.extras)

    def _raised(self, method: str, error: BaseException) -> Exception:
        if isinstance(error, UnplayableRow):
            return error
        if method == "reset":
            reset = env_attribute(self.env, "reset")
            if lacks := lacks_column(reset, self.name_of("reset"), self._task, error):
                return lacks
        return raised_by_env(self.name_of(method), error)


def make_env(factory: EnvFactory) -> Env | AsyncEnv:
    """Create one environment; any exception becomes an `EnvError` that names the factory."""
    name = getattr(factory, "__name__", repr(factory))
    try:
        env = factory()
    except BaseException as error:  # SystemExit of an environment does not end training
        raise raised_by_env(f"{name}()", error) from error
    return _with_methods(env, f"{name}()")


async def lend_env(pool: EnvPool, task: "RolloutTask") -> Env | AsyncEnv:
    """Wait for an environment of a pool; any exception becomes an `EnvError`."""
    return _with_methods(await lent_by(pool, task), f"{type(pool).__name__}.lend")


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
    """Return the loop on which an asynchronous environment must be played; None: the engine's."""
    return env.loop if issubclass(type(env), LoopBound) else None


def check_reply(env: Any, method: str, returned: Any) -> tuple[Any, Reply]:
    """Check `(env, reply)` as a method returned it, and return it.

    Raises:
        EnvError: the value is not a pair of an environment and a reply.
    """
    name = f"{type(env).__name__}.{method}"
    if not isinstance(returned, tuple) or len(returned) != 2:
        check_no_awaitable(env, method, returned)
        hint = "return (self, text)"
        if isinstance(returned, tuple) and len(returned) == 5:
            hint = "step returns five values, as in Gym: wrap the environment in abut.gym.GymEnv"
        raise placed_in(
            env, method, f"{name} must return (env, reply), got {shape_of(returned)}", hint
        )
    following, reply = returned
    for attribute in ("reward", "alive", "step"):
        if not _has(following, attribute):
            what = f"{name} returned {type(following).__name__} without the attribute {attribute!r}"
            hint = _SET.get(attribute, "")
            if not hint or not _has(following, "step"):
                hint = "the first item of the pair must be the environment, usually self"
            raise placed_in(env, method, what, hint)
    if isinstance(reply, str):
        return following, reply
    if isinstance(reply, list) and reply and all(map(_is_block, reply)):
        reply = [{"role": "user", "content": reply}]
    if isinstance(reply, list):
        reply = [_with_images(env, method, message) for message in reply]
    if not isinstance(reply, list) or not all(_is_message(message) for message in reply):
        raise placed_in(env, method, *_no_reply(name, reply))
    # A copy: the environment may use its message again for the next turn.
    try:
        return following, [json_copy(message) for message in reply]
    except BaseException as error:  # a message that holds itself, a value that has no text
        raise placed(
            EnvError(f"{name} replied with a message that cannot be copied: {text_of(error)}"),
            trace_of(error),
        ) from error


def _with_images(env: Any, method: str, message: Any) -> Any:
    """Return a message whose images are read; they are decoded here, once."""
    if not isinstance(message, dict) or isinstance(message.get("content"), str):
        return message
    name, content = f"{type(env).__name__}.{method}", message.get("content")
    block = strange_block(content, known=("text", *IMAGE_BLOCKS))
    if block is not None:
        because, instead = refusal_of(block)
        what = f"{name} replied with content of the type {block!r}, but {because}"
        raise placed_in(env, method, what, instead)
    try:
        read = with_images(content)
    except ImageError as error:
        raise placed_in(env, method, f"{name} replied with an invalid image: {error}") from error
    return message if read is content else {**message, "content": read}


def check_no_awaitable(env: Any, method: str, returned: Any) -> None:
    """Refuse an awaitable result of one method if the other methods are not async.

    Raises:
        EnvError: the result is an awaitable.
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


def _with_methods(env: Any, source: str) -> Env | AsyncEnv:
    for method in ("reset", "step"):
        if not (_has(env, method) and callable(getattr(env, method))):
            hint = "an Env has reset(seed) and step(action), and attributes reward and alive"
            if method == "step" and env is not None:
                hint += (
                    "; if this is a factory for TRL's environment_factory, use "
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
                return said, 'write {"role": "tool", "content": "text"}; the content may be ""'
            if not _is_message(message):
                content = shape_of(message["content"])
                said = f"message {number} of the reply of {name} must be text, got {content}"
                return said, "json.dumps(value) turns it into text"
    said = f"{name} must reply with a str or a list of messages, got {shape_of(reply)}"
    if isinstance(reply, dict) and "role" in reply:
        return said, "a single message needs a list around it: return self, [message]"
    if isinstance(reply, dict | list):
        return said, (
            "json.dumps(observation) turns it into text; a message is "
            '{"role": "user", "content": "text"}'
        )
    return said, "return (self, text), or a list of messages"


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and is_content(message.get("content"))
    )


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and "type" in value and "role" not in value
