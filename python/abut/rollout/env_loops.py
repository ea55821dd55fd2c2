"""The event loops of asynchronous environments and agents, and the closing of environments.

They share one event loop; a class that blocks it gets its own loop.

Invariant: an attempt stays on the loop on which it began, because the connections of its
environment belong to that loop. A class of environments that has blocked a loop shares no loop with
others from its next attempt on. Closing happens in the background: an environment that fails or
hangs while closing does not fail a rollout, and delays a batch by a few seconds once.

An agent that blocks keeps its loop until it blocks beyond its own deadline, because agents usually
share one client between rollouts, and the client's connections belong to the loop.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any
from weakref import WeakKeyDictionary, WeakMethod, WeakSet

from abut.concurrency.loop_watch import BLOCKS_S, LoopWatch, WatchedCall, WatchedLoop
from abut.concurrency.threads import CallQueue
from abut.envs.foreign import close_async_env, close_env

logger = logging.getLogger(__name__)

_CLOSE_S = 5.0
_CLOSE_LOOP_S = 2.0
# The limit for each of three waits, so that a Ctrl-C ends a batch within a second.
INTERRUPTED_CLOSE_S = 0.25
# A stream closes environments for days, so closed ones are forgotten each time this many are kept.
_FORGET = 64
_MOVES = (
    ", and from the next attempt on, environments of this class get their own event loop and thread"
)


class EnvLoops:
    """The event loops of one engine's environments; they are kept, and paused between batches."""

    def __init__(self) -> None:
        # Reentrant, because a garbage collection in between may end an engine, and with it a loop.
        self._lock = threading.RLock()
        self._shared: WatchedLoop | None = None
        self._others = False
        """True if reward functions have also used the shared loop."""
        self._kinds = WeakSet[Any]()
        """The kinds that have used the shared loop."""
        self._agents = WeakSet[Any]()
        """The kinds that are agents."""
        self._told = WeakSet[Any]()
        """The kinds about which a warning was logged."""
        self._own = WeakKeyDictionary[Any, WatchedLoop | None]()
        """The loop of each kind that has blocked one; None: made when it is needed."""
        self._lost: list[WatchedLoop] = []
        """Loops that a call may block forever, ended with the batch."""

    def open(self) -> WatchedLoop:
        """Start the shared loop, and return it."""
        with self._lock:
            self._others = True
            return self._open_shared()

    def of(self, kind: Any, name: str, *, is_agent: bool = False) -> WatchedLoop:
        """Return the running loop on which the next attempt begins.

        Args:
            kind: an environment's class, or an object that represents an agent.
            name: the name of the thread, if the kind has its own loop.
            is_agent: whether it is an agent.
        """
        with self._lock:
            if is_agent:
                self._agents.add(kind)
            if kind not in self._own:
                self._kinds.add(kind)
                return self._open_shared()
            loop = self._own[kind] = self._own[kind] or self._new(f"abut-env-loop-{name}")
            loop.open()
            return loop

    def close(self, seconds: float) -> None:
        """Pause the loops; a blocked loop is replaced."""
        with self._lock:
            loops = [self._shared, *self._own.values()]
            lost, self._lost = self._lost, []
        for blocked in lost:
            blocked.end(0.0)
        deadline = time.monotonic() + seconds
        for loop in loops:
            if loop is not None and not loop.close(max(0.0, deadline - time.monotonic())):
                with self._lock:
                    self._drop(loop)

    def _open_shared(self) -> WatchedLoop:
        if self._shared is None:
            self._shared = self._new("abut-env-loop")
        self._shared.open()
        return self._shared

    def _new(self, name: str) -> WatchedLoop:
        # Weakly, so that an unused engine closes its loops immediately.
        return WatchedLoop(name, _weakly(self._blocked), _weakly(self._lose))

    def _lose(self, watch: LoopWatch) -> None:
        """Stop using a loop that may be blocked forever."""
        with self._lock:
            for loop in (self._shared, *self._own.values()):
                if loop is not None and loop.watch is watch:
                    self._drop(loop)
                    self._lost.append(loop)
            if watch.lost_to is not None:
                self._own.setdefault(watch.lost_to[0].kind, None)

    def _drop(self, loop: WatchedLoop) -> None:
        if loop is self._shared:
            self._shared = None
        for kind, own in list(self._own.items()):
            if own is loop:
                self._own[kind] = None

    def _blocked(self, call: WatchedCall[Any] | None, place: str) -> None:
        kind = EnvLoops if call is None else call.kind
        with self._lock:
            if kind in self._told:
                return
            self._told.add(kind)
            if moves := call is not None and kind not in self._agents:
                self._move(kind)
        logger.warning(
            "%s has blocked the event loop of asynchronous environments and agents for %g s. "
            "That time counts against the timeouts of %s%s.\n"
            "It is here (most recent call last):\n"
            "%shint: await instead, or use asyncio.to_thread(…)",
            "A callback" if call is None else call.name,
            BLOCKS_S,
            "all rollouts" if call is None else "its own rollout only",
            _MOVES if moves else "",
            place,
        )

    def _move(self, kind: Any) -> None:
        """Make the next attempts of this kind begin on their own loop."""
        # If it is alone on its loop, it can stay there with its clients.
        is_alone = not self._others and set(self._kinds) == {kind}
        self._own[kind] = self._shared if is_alone else None
        if is_alone:
            self._shared, self._kinds = None, WeakSet()


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    ref = WeakMethod(method)

    def call(*args: Any) -> None:
        if (alive := ref()) is not None:
            alive(*args)

    return call


class EnvClosing:
    """The environments of one batch that are being closed, and how long to wait for them.

    Attributes:
        hangs: whether `close` of some environment has not returned.
        interrupted: whether waits must be short, after a Ctrl-C.
        gives_up: whether the batch is ending its rollouts.
    """

    def __init__(self, env_loops: EnvLoops, *, hangs: bool) -> None:
        self.hangs = hangs
        self.interrupted = False
        self.gives_up = False
        self._env_loops = env_loops
        self._closing: list[Future[Any]] = []
        self._hanging: list[Future[Any]] = []
        self._forget_at = _FORGET

    def on_thread(self, thread: CallQueue, env: Any, *, keep: bool, hangs: bool) -> None:
        """Close an environment on its thread, if there is one; give the thread back unless `keep`.

        This happens in the background, after a call that still runs, and errors do not fail a
        rollout. abut does not wait for an environment that `hangs`, because its call may never
        return. If the batch gives up, the call was only cancelled and may return soon.
        """
        closed = thread.submit(lambda: close_env(env), last=not keep)
        self._note(self._hanging if hangs and not self.gives_up else self._closing, closed)

    def on_loop(self, env: Any, loop: WatchedLoop | None) -> None:
        """Close an asynchronous environment in the background, on its loop if it began there."""
        cls = type(env)
        loop = loop or self._env_loops.of(cls, cls.__name__)
        loop.open()
        closed = loop.submit_call(cls, f"{cls.__name__}.close", lambda: close_async_env(env))
        self._note(self._closing, closed)

    def wait(self) -> None:
        """Give environments time to close; after some hang, later batches wait only briefly."""
        brief = self.interrupted or self.hangs
        seconds = INTERRUPTED_CLOSE_S if brief else _CLOSE_S
        try:
            deadline = time.monotonic() + seconds
            # Not in a single wait, because a Ctrl-C just before a wait is noticed only when the
            # wait ends.
            while (left_s := deadline - time.monotonic()) > 0:
                if not wait_for(self._closing, min(left_s, INTERRUPTED_CLOSE_S)).not_done:
                    break
        except BaseException:
            self.interrupted = True
            raise
        calls = sum(not future.done() for future in self._hanging)
        if calls and not self.interrupted:
            logger.warning(
                "%d calls of environments have not returned: each keeps a thread until it "
                "returns, and then its environment is closed",
                calls,
            )
        hanging = sum(not future.done() for future in self._closing)
        if not hanging:
            self.hangs = False
        if hanging and not self.hangs and not self.interrupted:
            self.hangs = True
            logger.warning(
                "%d environments did not close within %g s, and each keeps a thread; abut waits "
                "only %g s for them from now on",
                hanging,
                seconds,
                INTERRUPTED_CLOSE_S,
            )

    def close_loop(self) -> None:
        """Pause the event loops of environments."""
        self._env_loops.close(INTERRUPTED_CLOSE_S if self.interrupted else _CLOSE_LOOP_S)

    def _note(self, futures: list[Future[Any]], closed: Future[Any]) -> None:
        futures.append(closed)
        if len(self._closing) + len(self._hanging) >= self._forget_at:
            for some in (self._closing, self._hanging):
                some[:] = [future for future in some if not future.done()]
            self._forget_at = _FORGET + 2 * (len(self._closing) + len(self._hanging))
