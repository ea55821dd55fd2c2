"""A pool of actors, which lends their slots.

Invariant: a lease is one slot of one actor that has answered, and a call of it is sent once. An
actor that died, or that hangs, gets no new lease and is replaced at once. Borrowers wait in line as
long as any actor lives.
"""

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from abut.concurrency.clock import backoff
from abut.concurrency.lending import LendingPool
from abut.concurrency.threads import THREADS
from abut.errors import EnvError, text_of
from abut.ray.calls import (
    CallOutcome,
    Failed,
    hint_of,
    kill,
    packed,
    said_of,
    sent,
    unpacked,
    within,
)

logger = logging.getLogger(__name__)

# An actor that cannot start is tried again; to start one takes half a second of CPU at least.
_delays_s = functools.partial(backoff, 0.5, 30.0)
_LATE_S = 1.0
"""How long a call may still run after it was given up, usually because a batch ended."""
_CLOSE_S = 30.0
"""How long an environment may take to close."""
_NOTICE_S = 5.0
"""After how long a log line says that no actor has started."""
_LOOK_S = 2.0
"""How long the cluster may take to say what is free."""
_HEAD_S = 5.0
"""The seconds between two checks of the cluster's head."""


@dataclass(eq=False)
class Actor:
    """The pool's view of an actor."""

    handle: Any
    slots: int
    delays_s: Iterator[float] = field(default_factory=_delays_s)
    is_ready: bool = False
    """True if it answers and may be lent: from its first answer until it is abandoned."""
    free: list[int] = field(init=False)
    """The slots that are not lent."""

    def __post_init__(self) -> None:
        self.free = list(range(self.slots))

    @property
    def leases(self) -> int:
        """How many slots are lent."""
        return self.slots - len(self.free)


@dataclass(eq=False)
class Lease:
    """One slot of one actor."""

    actor: Actor
    slot: int
    number: int
    """A unique number."""
    call: "asyncio.Future[CallOutcome] | None" = None
    """The last call that was sent."""
    closes: bool = True
    """True if there is something to close in the actor when the lease ends."""
    cancels: bool = False
    """True if calls can be cancelled in the actor after they were given up."""


class ActorPool(LendingPool[Lease]):
    """Lends slots.

    Args:
        make: makes an actor, and returns before the actor runs.
        slots: the number of slots of each actor.
        what: the kind of object in an actor, for errors.
        start_timeout_s: how long the pool may be without an actor that answers.
        room: describes what an actor needs and what is free; may block.
        check_head: raises an `EnvError` if the head of the cluster does not answer; may block.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        slots: Sequence[int],
        *,
        what: str,
        start_timeout_s: float,
        room: Callable[[], str],
        check_head: Callable[[], None],
    ) -> None:
        super().__init__()
        self._make = make
        self._slots = slots
        self._what = what
        self._start_timeout_s = start_timeout_s
        self._room = room
        self._check_head = check_head
        self._actors: list[Actor] = []
        """The actors that are ready or starting."""
        self._left: set[Actor] = set()
        """The abandoned actors, on which episodes are still running."""
        self._numbers = itertools.count()
        self._last_error = ""
        self._nobody: str | None = None
        """Why no lease can be given; None: one can be, now or soon."""
        self._deadline: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Make all actors.

        Raises:
            Exception: Ray refuses the options of an actor.
        """
        self._watch()
        for slots in self._slots:
            self._begin(Actor(self._make(), slots))
        self._spawn(self._notice())
        self._spawn(self._watch_head())

    async def lend(self) -> Lease:
        """Wait for a slot, and take it from the actor with the fewest leases.

        Raises:
            EnvError: no actor lives, and none has started for `start_timeout_s`.
        """
        return await self._next_in_line(asyncio.get_running_loop().time())

    async def ask(self, lease: Lease, name: str, method: str, /, *args: Any) -> Any:
        """Send a call of a lease, and wait for its answer.

        Args:
            lease: one whose last call was answered.
            name: the name of this call in errors.
            method: the method of the actor.
            args: the arguments after the lease's number.

        Raises:
            EnvError: the actor died, or cannot answer.
        """
        actor = lease.actor
        try:
            arguments = packed((lease.number, *args))
            lease.call = sent(getattr(actor.handle, method), arguments, slot=lease.slot)
        except Exception as unsent:
            raise EnvError(
                f"{name}: the call cannot be sent to its actor: {text_of(unsent)}\n"
                "hint: everything that is sent must be picklable, including the columns of the "
                "row"
            ) from unsent
        # Shielded: where the rollout gives up, the call still runs, and `give_back` looks at it.
        answered, error = await asyncio.shield(lease.call)
        if error is not None:
            self._leave(actor, said_of(error))
            raise EnvError(f"{name}: {said_of(error)}{hint_of(error)}") from None
        try:
            answer = unpacked(answered)
        except Exception as unread:
            raise EnvError(
                f"{name} returned a value that this process cannot unpickle: {text_of(unread)}\n"
                "hint: return only types that this process can import"
            ) from unread
        if isinstance(answer, Failed) and answer.is_exhausted:
            self._leave(actor, answer.text)
        return answer

    def give_back(self, lease: Lease) -> None:
        """Take a slot back when its episode has ended; do not wait for that."""
        if lease.closes or (lease.call is not None and not lease.call.done()):
            self._spawn(self._end(lease))
        else:
            self._free(lease)

    async def close(self) -> None:
        """End all actors, including those with leases."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        self._refuse("the RayPool was closed")
        await self._line_ends()
        for actor in [*self._actors, *self._left]:
            kill(actor.handle)
        self._actors.clear()
        self._left.clear()

    def _take(self) -> Lease | None:
        """Take a slot of the actor with the fewest leases."""
        free = [actor for actor in self._actors if actor.is_ready and actor.free]
        if not free:
            return None
        actor = min(free, key=lambda actor: actor.leases)
        return Lease(actor, actor.free.pop(), next(self._numbers))

    def _give_up(self, began: float) -> None:
        """Raise if no lease can be given, now or soon."""
        if self._nobody is not None:
            raise EnvError(self._nobody)

    def _free(self, lease: Lease) -> None:
        actor = lease.actor
        actor.free.append(lease.slot)
        if actor in self._left and not actor.leases:
            self._left.discard(actor)
            kill(actor.handle)
        self._wake()

    async def _end(self, lease: Lease) -> None:
        actor, call = lease.actor, lease.call
        try:
            if call is not None:
                if lease.cancels and not call.done():
                    sent(actor.handle.cancel, lease.number)
                await within(_LATE_S, call)
                if not call.done():
                    self._leave(
                        actor, f"a call that was given up did not return within {_LATE_S:g} s"
                    )
                elif lease.closes and call.result().error is None:
                    closed = sent(actor.handle.close, lease.number, slot=lease.slot)
                    await within(_CLOSE_S, closed)
                    if not closed.done():
                        self._leave(actor, f"an environment did not close within {_CLOSE_S:g} s")
                    elif (error := closed.result().error) is not None:
                        self._leave(actor, said_of(error))
        finally:
            self._free(lease)

    def _begin(self, actor: Actor) -> None:
        self._actors.append(actor)
        self._spawn(self._first_answer(actor))

    async def _first_answer(self, actor: Actor) -> None:
        answer, error = await sent(actor.handle.begin)
        if error is None and answer is None:
            actor.is_ready = True
            self._nobody = None
            self._watch()
            self._wake()
            return
        self._actors.remove(actor)
        kill(actor.handle)
        if error is None:
            self._last_error = (
                f"an actor cannot make {self._what}: {answer}\n"
                "hint: make it importable on every node, with runtime_env={'working_dir': '.'} "
                "or env_vars that set PYTHONPATH"
            )
            if not any(actor.is_ready for actor in self._actors):
                self._refuse(self._last_error)
        else:
            self._last_error = f"the last actor that failed: {said_of(error)}{hint_of(error)}"
        await asyncio.sleep(next(actor.delays_s))
        self._begin(Actor(self._make(), actor.slots, actor.delays_s))

    def _leave(self, actor: Actor, why: str) -> None:
        """Abandon an actor: it is replaced, and ends when its last lease ends."""
        if actor not in self._actors:
            return  # another lease of it has said so, or it was closed
        logger.info("replaced an actor with %d leases: %s", actor.leases, why)
        self._last_error = f"the last actor that was lost: {why}"
        self._actors.remove(actor)
        actor.is_ready = False
        self._left.add(actor)
        self._watch()
        self._begin(Actor(self._make(), actor.slots))

    def _watch(self) -> None:
        """Start or stop the clock of `start_timeout_s`."""
        if any(actor.is_ready for actor in self._actors):
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(
                self._start_timeout_s, lambda: self._spawn(self._refuse_for_now())
            )

    async def _refuse_for_now(self) -> None:
        room = await self._cluster_says()
        if any(actor.is_ready for actor in self._actors):
            return
        self._refuse(
            f"no actor answered within start_timeout_s={self._start_timeout_s:g}: {room}\n"
            + (f"{self._last_error}\n" if self._last_error else "")
            + "hint: run `ray status` to see the nodes; request less (num_cpus=, resources=) "
            "or add nodes"
        )

    def _refuse(self, why: str) -> None:
        """Raise this error for all borrowers, now and later."""
        self._nobody = why
        self._wake()

    async def _notice(self) -> None:
        """Warn early if no actor is running, and later if only some are running."""
        await asyncio.sleep(min(_NOTICE_S, self._start_timeout_s))
        if not any(actor.is_ready for actor in self._actors) and self._nobody is None:
            logger.warning("no actor of the pool is running yet: %s", await self._cluster_says())
        await asyncio.sleep(max(0.0, self._start_timeout_s - _NOTICE_S))
        await self.say_who_runs()

    async def say_who_runs(self) -> None:
        """Warn if the cluster has room for only some of the actors."""
        ready = sum(actor.is_ready for actor in self._actors)
        if 0 < ready < len(self._actors):
            logger.warning(
                "only %d of %d actors are running; the others wait for room in the cluster, so "
                "rollouts wait for a slot: %s",
                ready,
                len(self._actors),
                await self._cluster_says(),
            )

    async def _watch_head(self) -> None:
        """Log once when the head stops answering, because Ray itself ends the process silently."""
        was_there = True
        while True:
            await asyncio.sleep(_HEAD_S)
            try:
                await THREADS.ask(self._check_head)
                was_there = True
            except Exception as error:
                if was_there:
                    logger.error(
                        "%s\n"
                        "Running actors continue, but no new ones start. If the head does not "
                        "answer again, Ray ends this process after "
                        "RAY_gcs_rpc_server_reconnect_timeout_s (60 s by default)",
                        text_of(error),
                    )
                was_there = False

    async def _cluster_says(self) -> str:
        try:
            async with asyncio.timeout(_LOOK_S):
                return await THREADS.ask(self._room)
        except TimeoutError:
            return (
                f"the head of the cluster did not answer within {_LOOK_S:g} s; check that it is "
                "running"
            )
        except Exception as error:  # Ray was shut down
            return text_of(error)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._is_closed:
            coroutine.close()
        else:
            super()._spawn(coroutine)
