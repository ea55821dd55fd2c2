"""Work for the gateway's loop, which every rollout waits for."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from abut.concurrency.threads import THREADS

T = TypeVar("T")


async def work_done(quick: bool, work: Callable[[], T]) -> T:
    """Do what is quick here, all else on a thread.

    Raises:
        CancelledError: the caller was cancelled; the work is done all the same by then, and
            nothing of it changes any more.
    """
    if quick:
        return work()
    working = THREADS.ask(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})  # nobody else may touch what it still writes
        raise
