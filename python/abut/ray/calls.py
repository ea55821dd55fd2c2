"""Calls to actors: each is sent once, and what becomes of it is a value.

What Ray says of one that has no answer is shortened here to what its user needs.
"""

import asyncio
from contextlib import suppress
from typing import Any, NamedTuple

from abut.concurrency.mailbox import settles_on_loop
from abut.errors import text_of
from abut.ray.package import the_ray

_LONGEST = 300
"""Of what Ray says; it goes on about what may have been."""


class Reply(NamedTuple):
    """What became of a call: as a value, so that nothing complains where nobody looks at it."""

    answer: Any
    error: BaseException | None


def thread_of(slot: int) -> str:
    """What Ray calls the thread of a slot: a concurrency group with room for one call."""
    return f"slot-{slot}"


def sent(method: Any, *args: Any, slot: int | None = None) -> "asyncio.Future[Reply]":
    """Send a call; its reply comes to this loop, and is never an error.

    Args:
        method: of an actor.
        args: of the method.
        slot: on whose thread it runs, behind the calls before; None: on that of no slot.
    """
    if slot is not None:
        method = method.options(concurrency_group=thread_of(slot))
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    settle = settles_on_loop(future)

    def answered(done: Any) -> None:  # on a thread of Ray's
        error = done.exception()
        settle(Reply(None if error else done.result(), error), None)

    method.remote(*args).future().add_done_callback(answered)
    return future


async def within(seconds: float, call: "asyncio.Future[Reply]") -> None:
    """Wait for a call, and not longer than that."""
    await asyncio.wait([call], timeout=seconds)


def kill(actor: Any) -> None:
    """End an actor, whatever plays in it; does not wait."""
    with suppress(Exception):  # Ray is gone, and the actor with it
        the_ray().kill(actor)


def said_of(error: BaseException) -> str:
    """What Ray says of a call that has no answer, in one line."""
    known = the_ray().exceptions
    if isinstance(error, known.RayTaskError):
        return f"its actor raised {text_of(error.cause)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = "its actor is gone" if isinstance(error, known.RayActorError) else "Ray lost the call"
    why = (lines or ["without a reason"])[-1]
    short = why if len(why) <= _LONGEST else f"{why[:_LONGEST]}…"
    return f"{what}: {type(error).__name__}: {short}"


def hint_of(error: BaseException) -> str:
    """What to do about a call that has no answer, as the end of a text."""
    known = the_ray().exceptions
    if isinstance(error, known.RayTaskError) or not isinstance(error, known.RayError):
        return ""
    return (
        "\nhint: it is replaced, and the episode is played again where retries= allows it; what "
        "ends its process takes the others in it along unless slots=1"
    )
