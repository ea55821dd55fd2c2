"""Calls to actors and their answers, as bytes.

Invariant: each call is sent once, and its outcome is a value, never an exception that is not
retrieved. Both ends share the answer types below, and nothing else.

Arguments and answers are sent as bytes, because Ray would inspect each argument and each answer for
parts that it can send without pickling; for calls as small as these, that takes a tenth of the CPU
time on both sides. Ray's own text about a failed call is shortened to what the user needs.
"""

import asyncio
import errno
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from abut.agents.protocol import name_of
from abut.concurrency.mailbox import settles_on_loop
from abut.envs.guarded import EnvState
from abut.errors import text_of
from abut.ray.cluster import the_ray


class Said(NamedTuple):
    """The state of an environment after one of its calls."""

    state: EnvState
    is_over: bool = False
    """True if the episode has ended, and the environment has nothing to close."""


class Finished(NamedTuple):
    """The result of an agent."""

    pickled: bytes
    """An `AgentResult`; its reward is NaN if the agent's was. Pickled by abut, because a value that
    Ray cannot pickle or read would look like a broken actor.
    """


class Failed(NamedTuple):
    """An error that an environment or an agent raised."""

    text: str
    trace: str
    is_row: bool = False
    """True if the row of the dataset is wrong, so another attempt cannot help."""
    is_exhausted: bool = False
    """True if the process has run out of a resource that its other slots need too."""
    may_pass: bool = True
    """True if another attempt may succeed."""


_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_exhausted(error: BaseException) -> bool:
    """Return True if an error came because the process ran out of memory, files or threads."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "can't start new thread" in str(cause):
            return True
        if isinstance(cause, OSError) and cause.errno in _EXHAUSTED:
            return True
        cause = cause.__cause__
    return False


def packed(value: Any) -> bytes:
    """Return a value as bytes; classes of the main script can be pickled too."""
    return the_ray().cloudpickle.dumps(value)  # type: ignore[no-any-return]


def unpacked(data: bytes) -> Any:
    """Read what `packed` wrote."""
    return pickle.loads(data)


def wired(method: Callable[..., Any]) -> Callable[[Any, bytes], bytes]:
    """Wrap a method of an actor so that its arguments and its answer are packed."""

    def called(self: Any, arguments: bytes) -> bytes:
        answer = method(self, *unpacked(arguments))
        try:
            return packed(answer)
        except Exception as error:
            what = (
                f"{name_of(self.made)}.{method.__name__} returned a value that cannot be sent back"
            )
            is_out = is_exhausted(error)
            return packed(Failed(f"{what}: {text_of(error)}", "", is_exhausted=is_out))

    # Not `functools.wraps`: Ray looks at the parameters, and would find those of `method`.
    called.__name__, called.__qualname__ = method.__name__, method.__qualname__
    called.__doc__ = method.__doc__
    return called


_LONGEST = 300
"""The most characters of Ray's text, which goes into possible causes at length."""


class CallOutcome(NamedTuple):
    """The outcome of a call, as a value, so that asyncio does not warn if it is not retrieved."""

    answer: Any
    error: BaseException | None


def thread_of(slot: int) -> str:
    """Return Ray's name for the thread of a slot: a concurrency group with room for one call."""
    return f"slot-{slot}"


def sent(method: Any, *args: Any, slot: int | None = None) -> "asyncio.Future[CallOutcome]":
    """Send a call; return a future of this loop, which never holds an exception.

    Args:
        method: the method of an actor.
        args: the arguments of the method.
        slot: the slot on whose thread it runs, after earlier calls; None: a thread without a slot.
    """
    if slot is not None:
        method = method.options(concurrency_group=thread_of(slot))
    future: asyncio.Future[CallOutcome] = asyncio.get_running_loop().create_future()
    settle = settles_on_loop(future)

    def answered(done: Any) -> None:  # on a thread of Ray's
        error = done.exception()
        settle(CallOutcome(None if error else done.result(), error), None)

    method.remote(*args).future().add_done_callback(answered)
    return future


async def within(seconds: float, call: "asyncio.Future[CallOutcome]") -> None:
    """Wait for a call, with a time limit."""
    await asyncio.wait([call], timeout=seconds)


def kill(actor: Any) -> None:
    """Kill an actor, with all episodes in it; do not wait."""
    with suppress(Exception):  # Ray is gone, and the actor with it
        the_ray().kill(actor)


def said_of(error: BaseException) -> str:
    """Return Ray's text about a failed call, in one line."""
    known = the_ray().exceptions
    if isinstance(error, known.RayTaskError):
        return f"its actor raised {text_of(error.cause)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = "its actor died" if isinstance(error, known.RayActorError) else "Ray lost the call"
    why = (lines or ["without a reason"])[-1]
    short = why if len(why) <= _LONGEST else f"{why[:_LONGEST]}…"
    return f"{what}: {type(error).__name__}: {short}"


def hint_of(error: BaseException) -> str:
    """Return the hint for a failed call, to append to its message."""
    known = the_ray().exceptions
    if isinstance(error, known.RayTaskError) or not isinstance(error, known.RayError):
        return ""
    return (
        "\n"
        "hint: abut replaces the actor and plays the episode again if retries= allows it; with "
        "slots=1 a crash loses only its own rollout"
    )
