"""The environment of one attempt, and the threads and loops on which its code runs.

- A synchronous environment has its own thread: it is made, called, read and closed there.
- An asynchronous environment is made on some thread, and then called and read on an event loop: the
  shared loop, the loop of its class if the class has blocked the shared one, or a loop that it
  brings along.

Invariant: its code never runs on the loop of the batch, and whatever it raises is an `EnvError`.
"""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from abut.concurrency.loop_watch import WatchedCall, WatchedLoop
from abut.concurrency.process_turns import PROCESS_TURNS, CallTurn
from abut.concurrency.threads import THREADS, CallQueue
from abut.envs import guarded
from abut.envs.attributes import Extras
from abut.envs.env import Reply
from abut.envs.foreign import close_env, place_of, placed, queue_of, stands_at
from abut.envs.guarded import (
    EnvState,
    GuardedEnv,
    is_async,
    is_surely_async,
    lend_env,
    make_env,
    own_loop,
)
from abut.envs.task import EnvPool, RolloutTask
from abut.errors import EnvError, ImageError, TemplateError
from abut.messages import Message, has_images, images_of, with_images
from abut.rollout.batch import Batch

T = TypeVar("T")

_CALLERS = (Path(__file__), Path(guarded.__file__))
"""The files of abut that call an environment."""
_ROLES = ("system", "developer", "user", "assistant", "tool")


class Answer(NamedTuple):
    """The reply of an environment to a step, and its attributes after it."""

    messages: Sequence[Message]
    alive: bool
    reward: float | None
    seconds: float
    """The seconds that the step took."""


class LiveEnv:
    """An environment while an attempt plays with it."""

    def __init__(self, batch: Batch, task: RolloutTask) -> None:
        self._batch = batch
        self._task = task
        self._guarded = GuardedEnv(task)
        self._claimed: Any = None
        self._scores_episode = False
        self._calls: CallQueue | None = None
        """The calls on the thread on which it is made; a synchronous environment stays there."""
        self._call: asyncio.Future[Any] | None = None
        """The last call on that thread."""
        self._turn: CallTurn | None = None
        """The turn of its last call."""
        self._loop: WatchedLoop | None = None
        """The loop of an asynchronous environment, from its reset on."""
        self._stood_before_s = 0.0
        """How long that loop had been blocked before the reset."""
        self._watched: WatchedCall[Any] | None = None
        """The last call on that loop."""
        self._blocked_s = 0.0
        """How long its earlier calls have blocked the loop."""
        self._keeps_thread = False
        self._lock = threading.Lock()
        self._over = False

    @property
    def name(self) -> str:
        """Its name in errors."""
        if self._guarded.env is not None:
            return type(self._guarded.env).__name__
        return getattr(self._task.source, "__name__", "the environment")

    def waited_s(self) -> float:
        """How long others have delayed its last call, by forking or by blocking its loop."""
        blocked = 0.0 if self._watched is None else self._watched.spared_s()
        return blocked + (0.0 if self._turn is None else self._turn.waited_s)

    def spared_s(self) -> float:
        """How long others have blocked its loop since its reset."""
        if self._loop is None:
            return 0.0
        stood_s = self._loop.watch.stood_s()  # first, because it counts the blamed time
        own_s = self._blocked_s + (0.0 if self._watched is None else self._watched.blocked_s)
        return stood_s - self._stood_before_s - own_s

    @property
    def held_up_by(self) -> str:
        """Return the text that an error adds if another call blocks its loop permanently."""
        return "" if self._watched is None else self._watched.blamed

    @property
    def may_have_clashed(self) -> bool:
        """Return whether something other than its last call may have caused a failure.

        Others of its class forked meanwhile, or another class blocks its loop permanently.
        """
        if self._watched is not None and self._watched.is_held_up:
            return True
        return self._turn is not None and self._turn.may_have_clashed

    @property
    def has_thread(self) -> bool:
        """True if it is synchronous."""
        return self._calls is not None

    @property
    def scores_episode(self) -> bool:
        """True if it scores whole episodes; known after its first step."""
        return self._scores_episode

    @property
    def extras(self) -> Extras:
        """The environment's extras after its last call that returned."""
        return self._guarded.extras

    async def lend(self, pool: EnvPool) -> None:
        """Borrow the environment from a pool.

        Raises:
            EnvError: the pool failed.
        """
        env = await lend_env(pool, self._task)
        self._claim(env)
        self._guarded.env = env
        if not is_surely_async(env) and not await THREADS.ask(lambda: is_async(env)):
            self._calls, self._keeps_thread = queue_of(env), True

    async def reset(self, begin: Callable[[Sequence[Message]], None]) -> None:
        """Make the environment, unless a pool lent it, and reset it.

        `begin` gets its first messages, on a thread.

        Raises:
            EnvError: the environment failed.
            ValueError: the environment is synchronous, and that many at once need too many threads;
                or `reset` takes a column that the row does not have.
        """
        if self._calls is None:
            self._calls = THREADS.call_queue()
        keywords = await self._on_own_thread(lambda: self._start(begin))
        if keywords is not None:
            self._calls = None
            said = await self._on_loop("reset", self._first_said, self._task.seed, **keywords)
            await THREADS.ask(lambda: begin(said))

    def step_between(
        self, before: Callable[[], str | None], after: Callable[[Answer], T]
    ) -> Awaitable[T | None]:
        """Step a synchronous environment: `before` returns the action, `after` gets the answer.

        All three run on its thread, so that a step switches threads only twice. Return the result
        of `after`; None if there was no action and so no step.

        Raises:
            EnvError: the environment failed.
        """
        return self._on_own_thread(lambda: self._step_between(before, after))

    def _step_between(
        self, before: Callable[[], str | None], after: Callable[[Answer], T]
    ) -> T | None:
        if (action := before()) is None:
            return None
        began = time.monotonic()
        returned = self._guarded.call("step", action)
        return after(self._answered(returned, time.monotonic() - began))

    def step(self, action: str) -> Awaitable[Answer]:
        """Step an asynchronous environment.

        Raises:
            EnvError: the environment failed.
        """
        return self._on_loop("step", self._answered, action)

    def score_episode(self, messages: list[Message]) -> Awaitable[float | None]:
        """Pass it the whole episode, and return its reward.

        Raises:
            EnvError: the environment failed.
        """

        def score() -> float | None:
            return self._reward(self._guarded.scored(self._guarded.call("score_episode", messages)))

        if self._calls is not None:
            return self._on_own_thread(score)
        return self._on_loop(
            "score_episode", lambda *_: self._reward(self._guarded.scored()), messages
        )

    def where(self, method: str) -> str:
        """Return the line that its thread is executing, or else where the method begins."""
        if (at := stands_at(self._calls, behind=_CALLERS)) is not None:
            return at
        if self._watched is not None and (at := self._watched.blocked_at):
            return at
        return place_of(self._guarded.env, method) if self._guarded.env is not None else ""

    def unwritable(
        self, method: str, error: TemplateError | ImageError, messages: Sequence[Message]
    ) -> Exception:
        """Return the error of a reply that the template cannot write.

        A role that no template knows is the environment's mistake, and so is an image that the
        template does not write. Any other message may be fine and the template too narrow, so the
        template's error is returned unchanged.
        """
        strange = [m["role"] for m in messages if m["role"] not in _ROLES]
        pictured = [m["role"] for m in messages if images_of(m.get("content"))]
        if not (strange or pictured) or self._guarded.env is None:
            return error
        name = f"{type(self._guarded.env).__name__}.{method}"
        at = place_of(self._guarded.env, method)
        if not strange:
            said = f"{name} replied with an image in a {pictured[0]!r} message: {error}"
            return placed(EnvError(said), at)
        what, _, _ = str(error).partition("\nhint: ")
        return placed(
            EnvError(
                f"{name} replied with a message of the role {strange[0]!r}: {what}\n"
                "hint: use the role 'user' or 'tool'"
            ),
            at,
        )

    def end(self) -> None:
        """Close the environment in the background, after a call that still runs."""
        with self._lock:
            self._over = True
            self._batch.release(self._claimed)
            env = self._guarded.env
        if self._turn is not None:
            self._turn.forget_owner()
        if self._calls is not None:
            hangs = self._call is not None and self._call.cancelled()
            self._batch.closing.on_thread(self._calls, env, keep=self._keeps_thread, hangs=hangs)
        elif env is not None:
            self._batch.closing.on_loop(env, self._loop)

    def _claim(self, env: Any) -> None:
        self._batch.claim(env)
        # Held until the end: an address is only one environment's while that lives.
        self._claimed = env

    def _make(self) -> bool:
        """Make the environment; return whether the attempt still wants it."""
        env = make_env(self._task.factory)
        with self._lock:
            late = self._over
            if not late:
                self._claim(env)
                self._guarded.env = env
        if late:  # the attempt timed out meanwhile, so only this code can close the environment
            close_env(env)
        return not late

    def _start(self, begin: Callable[[Sequence[Message]], None]) -> Mapping[str, Any] | None:
        """Make the environment, and reset it if it is synchronous.

        If it is asynchronous, return the keywords for its `reset`, which runs on its loop.
        """
        if self._guarded.env is None and not self._make():
            return None
        keywords = self._guarded.reset_keywords()
        if is_async(self._guarded.env):
            # End its thread now. Until the loop gets to it, thousands that begin at once would
            # each keep one.
            self._calls.end_with_call()  # type: ignore[union-attr]
            return keywords
        if not self._keeps_thread:
            self._batch.check_thread_limit()
        begin(self._first_said(self._guarded.call("reset", self._task.seed, **keywords)))
        return None

    def _first_said(self, returned: Any, seconds: float = 0.0) -> Sequence[Message]:
        """Return the messages that `reset` returned."""
        return _messages_of(self._guarded.first_reply(returned))

    def _answered(self, returned: Any, seconds: float) -> Answer:
        """Return the reply of `step` and the attributes after it, read on the right thread."""
        state = self._guarded.said("step", returned)
        self._scores_episode = state.scores_episode
        return Answer(_messages_of(state.reply), state.alive, self._reward(state), seconds)

    def _reward(self, state: EnvState) -> float | None:
        if state.reward is None or not math.isnan(state.reward):
            return state.reward
        self._batch.warnings.nan_reward(type(self._guarded.env).__name__)
        return None

    def _kind(self) -> Any:
        return self._task.source if self._guarded.env is None else type(self._guarded.env)

    def _on_own_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        assert self._calls is not None
        self._turn = turn = PROCESS_TURNS.turn(self._kind, lambda: self.name)
        self._call = self._calls.ask(turn.around(call))
        self._call.add_done_callback(lambda _: turn.end())  # also where it was given up
        return self._call

    def _on_loop(
        self, method: str, then: Callable[[Any, float], T], /, *args: Any, **keywords: Any
    ) -> Awaitable[T]:
        """Call a method on the environment's loop.

        `then` gets its result and the seconds it took, also on that loop, because it may read the
        environment.
        """
        self._turn = turn = PROCESS_TURNS.turn(self._kind, lambda: self.name)

        async def run() -> T:
            began = time.monotonic()
            try:
                returned = await self._guarded.call_async(
                    method, *args, wait=turn.on_loop, **keywords
                )
            finally:
                turn.end()
            returned = await _with_images_read(returned)
            return then(returned, time.monotonic() - began)

        if (bound := own_loop(self._guarded.env)) is not None:
            return bound.ask(run)
        env = type(self._guarded.env)
        if self._loop is None:
            self._loop = self._batch.env_loops.of(env, env.__name__)
            self._stood_before_s = self._loop.watch.stood_s()
        if self._watched is not None:
            self._blocked_s += self._watched.blocked_s
        self._watched = self._loop.call(env, f"{env.__name__}.{method}", run)
        return self._watched.future


async def _with_images_read(returned: Any) -> Any:
    """Return the result of a method with its images decoded, on a thread.

    On a thread, because a screenshot takes 15 ms to decode and all asynchronous environments share
    one loop.
    """
    reply = returned[1] if isinstance(returned, tuple) and len(returned) == 2 else None
    if not isinstance(reply, list):
        return returned
    messages = [message for message in reply if isinstance(message, dict)]
    if not any(map(has_images, (reply, *(message.get("content") for message in messages)))):
        return returned

    def read() -> list[Any]:
        return [
            {**one, "content": with_images(one["content"])}
            if isinstance(one, dict) and "content" in one
            else one
            for one in with_images(reply)
        ]

    try:
        return returned[0], await THREADS.ask(read)
    except ImageError:  # the environment's mistake, which is named where replies are checked
        return returned


def _messages_of(reply: Reply) -> Sequence[Message]:
    """Return the messages of a reply; a non-empty string is a user turn."""
    if isinstance(reply, str):
        return [{"role": "user", "content": reply}] if reply else []
    return reply
