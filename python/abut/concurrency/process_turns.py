"""Turns of foreign calls that start processes, so that two calls never fork at once.

Environments and evaluation code were written to run alone. Here many run at once, on threads, and
concurrent forks fail or hang: handlers that packages register with `os.register_at_fork` wait for
each other, and a forked child keeps pipes open that another thread has just made for its own
process. With 32 environments that fork in each step, 3 of 3 runs hung.

Invariant: while a call that has forked is running, no other call forks or starts a process. Calls
that start processes without forking (`subprocess` without `preexec_fn`) run concurrently.

A call waits when it is about to fork, on its own thread, so its earlier work is not lost or
repeated. From then on, calls of its kind wait before they begin. A call that was given up does not
block others: its turn passes to the next call. If it is just forking, that call waits for the fork.
"""

import functools
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

from abut.concurrency.threads import THREADS
from abut.notices import Once

logger = logging.getLogger(__name__)

T = TypeVar("T")
Start = Literal["fork", "spawn"]

_SPAWNS = ("subprocess.Popen", "os.posix_spawn")
"""Audit events, which are raised in the calling thread."""


class CallGivenUp(RuntimeError):
    """A call that was given up was about to start a process."""


class CallTurn:
    """One call of foreign code, which may hold the right to start processes."""

    def __init__(
        self, turns: "ProcessTurns", kind: Callable[[], Any], name: Callable[[], str]
    ) -> None:
        self._turns = turns
        self.kind: Callable[[], Any] = kind
        self.name: Callable[[], str] = name
        self.holds: Start | None = None
        self.is_over = False
        self.wants_main_thread = False
        """True if it has set a signal handler, which only the main thread may do."""
        self._began_free = False
        self.saw_forks = False
        """True if calls of its kind had forked by the time it ended."""
        self.loop_thread: int | None = None
        self._waited_s = 0.0
        self._waits_since: float | None = None

    @property
    def waited_s(self) -> float:
        """The seconds that it has waited for others, which do not count for its limits."""
        since = self._waits_since
        return self._waited_s + (0.0 if since is None else time.monotonic() - since)

    @property
    def may_have_clashed(self) -> bool:
        """True if calls of its kind forked meanwhile and this call did not wait for them.

        Its failure, or its score, may then be caused by the others.
        """
        saw_forks = self.saw_forks if self.is_over else self._turns.forks(self)
        return self._began_free and self.holds != "fork" and saw_forks

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Count the time inside `with` as waiting."""
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waited_s, self._waits_since = self.waited_s, None

    def around(self, call: Callable[[], T]) -> Callable[[], T]:
        """Return the call for a thread, on which it waits for its turn; the turn ends with it."""

        def run() -> T:
            inside = _TURN.set(self)
            try:
                if self._begins_alone():
                    self._turns.take(self, "fork")
                return call()
            finally:
                _TURN.reset(inside)
                self.end()

        return run

    @contextmanager
    def forking(self) -> Iterator[None]:
        """Hold the right to fork, and then give it back permanently.

        Raises:
            CallGivenUp: as for `ProcessTurns.take`.
        """
        inside = _TURN.set(self)
        try:
            self._turns.take(self, "fork")
            yield
        finally:
            _TURN.reset(inside)
            self.end()

    async def on_loop(self, call: Callable[[], Any]) -> Any:
        """Await the result of `call` on the running loop, without blocking the loop."""
        self.loop_thread = threading.get_ident()
        inside = _TURN.set(self)
        try:
            if self._begins_alone():
                await THREADS.ask(lambda: self._turns.take(self, "fork"))
            return await call()
        finally:
            _TURN.reset(inside)
            self.end()

    def _begins_alone(self) -> bool:
        self._began_free = not self._turns.forks(self)
        return not self._began_free

    def end(self) -> None:
        """Give back its right to start processes; also when the call was given up."""
        if not self.is_over:  # usually called twice: by the call's thread, and by its future
            self._turns.end(self)

    def forget_owner(self) -> None:
        """Drop the reference to the owner of the call, even before a hanging call is over.

        The owner and the turn refer to each other. This cycle would keep an environment and its
        thread alive until the garbage collector finds it.
        """
        kind, name = self.kind(), self.name()
        self.kind, self.name = (lambda: kind), (lambda: name)


class ProcessTurns:
    """The turns of all calls in this process."""

    def __init__(self) -> None:
        self._begin()
        self._is_hooked = False

    def _begin(self, *, is_child: bool = False) -> None:
        """Begin without holders; also in a forked child, which has only the forking thread."""
        self._is_child = is_child
        self._changed = threading.Condition()
        self._forking = threading.RLock()  # a signal handler may fork inside a fork
        self._waiting: deque[CallTurn] = deque()
        self._forker: CallTurn | None = None
        self._spawners: set[CallTurn] = set()
        self._kinds = weakref.WeakSet[Any]()
        self._once = Once(logger)
        self._of_thread: weakref.WeakKeyDictionary[threading.Thread, CallTurn] = (
            weakref.WeakKeyDictionary()
        )

    def turn(self, kind: Callable[[], Any], name: Callable[[], str]) -> CallTurn:
        """Return a turn for a call of this kind, such as an environment's class."""
        if not self._is_hooked:
            self._hook()
        return CallTurn(self, kind, name)

    def forks(self, turn: CallTurn) -> bool:
        """Return whether a call of the same kind has forked."""
        try:
            # First the cheap question: each call asks twice, and usually nothing has forked.
            return bool(self._kinds) and turn.kind() in self._kinds
        except TypeError:  # a factory without a hash: its calls wait where they fork
            return False

    def take(self, turn: CallTurn, start: Start) -> None:
        """Wait until the call may start processes; first come, first served.

        Raises:
            CallGivenUp: the call was given up.
        """
        with self._changed:
            if turn.holds in ("fork", start) and not turn.is_over:
                return
            # A call that forks after it has started a process would wait for itself.
            self._spawners.discard(turn)
            self._waiting.append(turn)
            with turn.waits():
                self._changed.wait_for(lambda: turn.is_over or self._is_next(turn, start))
            self._waiting.remove(turn)
            if not turn.is_over:
                turn.holds = start
                if start == "fork":
                    self._forker = turn
                else:
                    self._spawners.add(turn)
            self._changed.notify_all()
        if turn.is_over:
            raise CallGivenUp("the call was given up, so it may not start processes any more")

    def end(self, turn: CallTurn) -> None:
        """Note that a call is over."""
        with self._changed:
            if not turn.is_over:
                turn.is_over, turn.saw_forks = True, self.forks(turn)
                # The owner of a call holds its turn. A reference back would be a circle, and the
                # thread of an environment would stay until the garbage collector finds it.
                turn.kind, turn.name = _no_kind, str
            if self._forker is turn:
                self._forker = None
            self._spawners.discard(turn)
            if self._waiting:
                self._changed.notify_all()

    def starts(self, start: Start) -> None:
        """Make the calling thread wait, which is about to start a process.

        Raises:
            CallGivenUp: as for `take`.
        """
        turn = _TURN.get() or self._of_thread.get(threading.current_thread())
        if turn is None or self._is_child or (turn.holds == "fork" and not turn.is_over):
            return
        if start == "fork" and not turn.is_over:
            self._note(turn)
        if turn.loop_thread == threading.get_ident():
            return  # waiting here would block the loop, and all other calls on it
        if not turn.is_over or _TURN.get() is turn:
            self.take(turn, start)

    def lend_to(self, thread: threading.Thread) -> None:
        """Make a thread that a call starts count as part of that call."""
        if (turn := _TURN.get()) is not None and not turn.is_over:
            self._of_thread[thread] = turn

    def _is_next(self, turn: CallTurn, start: Start) -> bool:
        if self._forker is not None or self._waiting[0] is not turn:
            return False
        return start == "spawn" or not self._spawners

    def _note(self, turn: CallTurn) -> None:
        with suppress(TypeError):
            self._kinds.add(turn.kind())
        name = turn.name()
        self._once.warn(
            name,
            "%s forks this process. Forks in several threads at once can fail or hang, so from "
            "now on its calls run one after the other\n"
            "hint: use subprocess.run without preexec_fn, which does not fork, so its calls can "
            "run at the same time",
            name,
        )

    def _hook(self) -> None:
        self._is_hooked = True
        # Not by their audit events: filelock 3.32 and later have an audit hook of their own, which
        # raises while another thread forks.
        for name in ("fork", "forkpty"):
            if hasattr(os, name):
                setattr(os, name, self._waiting_first(getattr(os, name)))
        start = threading.Thread.start

        @functools.wraps(start)
        def lend_and_start(thread: threading.Thread) -> None:
            self.lend_to(thread)
            start(thread)

        threading.Thread.start = lend_and_start  # type: ignore[method-assign, assignment]
        sys.addaudithook(self._heard)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=lambda: self.starts("fork"),  # `preexec_fn` does not raise an audit event
                after_in_child=lambda: self._begin(is_child=True),
            )

        # `signal.signal` looks it up there, so this also finds those who imported that by name.
        for module, name in ((sys.modules["_signal"], "signal"), (signal, "set_wakeup_fd")):
            setattr(module, name, self._noting_first(getattr(module, name)))

    def _noting_first(self, handle: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(handle)
        def note_and_handle(*args: Any, **keywords: Any) -> T:
            turn = _TURN.get()
            if turn is not None and threading.current_thread() is not threading.main_thread():
                turn.wants_main_thread = True
            return handle(*args, **keywords)

        return note_and_handle

    def _waiting_first(self, fork: Callable[[], T]) -> Callable[[], T]:
        @functools.wraps(fork)
        def wait_and_fork() -> T:
            self.starts("fork")
            # A call that is given up while it forks has already passed its turn on.
            with self._forking:
                return fork()

        return wait_and_fork

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        # Nearly all events are others: `open`, `import`, `id`.
        if event in _SPAWNS:
            self.starts("spawn")


def _no_kind() -> None: ...


_TURN: ContextVar[CallTurn | None] = ContextVar("abut_call_turn", default=None)

PROCESS_TURNS = ProcessTurns()
"""The turns of all batches of this process."""
