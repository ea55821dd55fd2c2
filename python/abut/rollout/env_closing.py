"""Environments that are closed in the background, and how long they are waited for.

Invariant: what fails or hangs here concerns no rollout, and costs a batch its seconds once.
"""

import logging
import time
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from inspect import iscoroutinefunction
from typing import Any

from abut.concurrency.loop_watch import WatchedLoop
from abut.concurrency.threads import THREADS, DaemonThread
from abut.envs.foreign import close_env
from abut.rollout.env_loops import EnvLoops

logger = logging.getLogger(__name__)

_CLOSE_S = 5.0
_CLOSE_LOOP_S = 2.0
# For each of three things that are waited for: all together within a second of the Ctrl-C.
INTERRUPTED_CLOSE_S = 0.25
# A stream closes environments for days: those that are closed are forgotten in lots of this many.
_FORGET = 64


class EnvClosing:
    """Of one batch.

    Attributes:
        hangs: whether environments that were closed have not returned.
        interrupted: whether nobody is to wait long.
        gives_up: whether the batch ends its rollouts.
    """

    def __init__(self, env_loop: EnvLoops, *, hangs: bool) -> None:
        self.hangs = hangs
        self.interrupted = False
        self.gives_up = False
        self._env_loop = env_loop
        self._closing: list[Future[Any]] = []
        self._hanging: list[Future[Any]] = []
        self._forget_at = _FORGET

    def on_thread(self, thread: DaemonThread, env: Any, *, keep: bool, hangs: bool) -> None:
        """Close an environment, if there is one, on its thread; give that back unless it is kept.

        In the background, behind a call that still runs: what fails here concerns no rollout. One
        that `hangs` is not waited for, since nothing says when it will return; but where the batch
        gives up, that call is only one nobody waits for any more.
        """
        closed = thread.submit(lambda: close_env(env), last=not keep)
        self._note(self._hanging if hangs and not self.gives_up else self._closing, closed)

    def on_loop(self, env: Any, loop: WatchedLoop | None) -> None:
        """Close an asynchronous environment in the background, on its loop where it has begun."""
        cls = type(env)
        loop = loop or self._env_loop.of(cls, cls.__name__)
        loop.open()
        closed = loop.submit_call(cls, f"{cls.__name__}.close", lambda: _close_async(env))
        self._note(self._closing, closed)

    def wait(self) -> None:
        """Give environments time to close: once. One that hangs would cost it in every batch."""
        brief = self.interrupted or self.hangs
        seconds = INTERRUPTED_CLOSE_S if brief else _CLOSE_S
        try:
            deadline = time.monotonic() + seconds
            # Not in one go: a Ctrl-C just before a wait is seen when that ends.
            while (left_s := deadline - time.monotonic()) > 0:
                if not wait_for(self._closing, min(left_s, INTERRUPTED_CLOSE_S)).not_done:
                    break
        except BaseException:
            self.interrupted = True
            raise
        calls = sum(not future.done() for future in self._hanging)
        if calls and not self.interrupted:
            logger.warning(
                "%d calls of environments have not returned: each keeps a thread until it does, "
                "and the environment is closed then",
                calls,
            )
        hanging = sum(not future.done() for future in self._closing)
        if not hanging:
            self.hangs = False
        if hanging and not self.hangs and not self.interrupted:
            self.hangs = True
            logger.warning(
                "%d environments did not close within %g s; they are waited for %g s from now on, "
                "and each keeps a thread",
                hanging,
                seconds,
                INTERRUPTED_CLOSE_S,
            )

    def close_loop(self) -> None:
        """Let the loop of environments stand still."""
        self._env_loop.close(INTERRUPTED_CLOSE_S if self.interrupted else _CLOSE_LOOP_S)

    def _note(self, futures: list[Future[Any]], closed: Future[Any]) -> None:
        futures.append(closed)
        if len(self._closing) + len(self._hanging) >= self._forget_at:
            for some in (self._closing, self._hanging):
                some[:] = [future for future in some if not future.done()]
            self._forget_at = _FORGET + 2 * (len(self._closing) + len(self._hanging))


async def _close_async(env: Any) -> None:
    close = getattr(env, "close", None)
    if iscoroutinefunction(close):
        await close()
    elif close is not None:
        await THREADS.ask(close)
