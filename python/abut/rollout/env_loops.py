"""The loops of asynchronous environments and agents: one for all, and one for each that blocks.

Invariant: an attempt stays on the loop on which it began, because what its environment has open
belongs to that loop. A class of environments that has blocked a loop shares none with others from
its next attempt on.

An agent that blocks stays where it is until it blocks beyond its own deadline: agents usually share
one client between rollouts, and the client's connections belong to the loop.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakMethod, WeakSet

from abut.concurrency.loop_watch import BLOCKS_S, LoopWatch, WatchedCall, WatchedLoop

logger = logging.getLogger(__name__)

_MOVES = (
    ", and from the next attempt on, environments of this class have a loop and a thread of their "
    "own"
)


class EnvLoops:
    """The loops of one engine's environments; they stand still between batches, and are kept."""

    def __init__(self) -> None:
        # Reentrant: a collection in the middle may end an engine, and with it a loop.
        self._lock = threading.RLock()
        self._shared: WatchedLoop | None = None
        self._others = False
        """True if reward functions have used the shared loop, too."""
        self._kinds = WeakSet[Any]()
        """The kinds that have used the shared loop."""
        self._agents = WeakSet[Any]()
        self._told = WeakSet[Any]()
        self._own = WeakKeyDictionary[Any, WatchedLoop | None]()
        """The loop of each kind that has blocked one; None: made when it is needed."""
        self._lost: list[WatchedLoop] = []

    def open(self) -> WatchedLoop:
        """The loop that all share, which runs from now on."""
        with self._lock:
            self._others = True
            return self._open_shared()

    def of(self, kind: Any, name: str, *, is_agent: bool = False) -> WatchedLoop:
        """Return the loop on which the next attempt begins, running.

        Args:
            kind: an environment's class, or what stands for an agent.
            name: names the thread, where it has a loop of its own.
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
        """Let them stand still; one that is blocked is replaced."""
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
        # Weakly: an engine that nobody has any more closes its loops at once.
        return WatchedLoop(name, _weakly(self._blocked), _weakly(self._lose))

    def _lose(self, watch: LoopWatch) -> None:
        """Have nothing begin any more on a loop that may be blocked for ever."""
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
            "%s has blocked the event loop that asynchronous environments and agents share for "
            "%g s. That time counts for %s%s.\n"
            "It is here (most recent call last):\n%shint: await instead, or asyncio.to_thread(…)",
            "A callback" if call is None else call.name,
            BLOCKS_S,
            "all rollouts" if call is None else "its own rollout alone",
            _MOVES if moves else "",
            place,
        )

    def _move(self, kind: Any) -> None:
        """Have the next attempts of this kind begin on a loop of its own."""
        # Alone on its loop it can stay there, with the clients that it keeps.
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
