"""A deadline cancels what takes too long, and takes nobody else's cancellation for its own."""

import asyncio
import time
from collections.abc import Coroutine
from itertools import islice
from typing import Any

import pytest

from abut.concurrency.clock import Deadline, DeadlineExpired, backoff


def run(case: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(case, 60))


def test_what_takes_too_long_is_cancelled_and_the_next_has_its_own_time() -> None:
    async def case() -> None:
        deadline = Deadline()
        for seconds in (0.02, 0.05, 0.02):
            began = time.monotonic()
            waiting = asyncio.ensure_future(asyncio.sleep(600))
            with pytest.raises(DeadlineExpired):
                await deadline.keep(waiting, seconds)
            assert time.monotonic() - began >= seconds
            assert waiting.cancelled()
            assert await deadline.keep(asyncio.sleep(0, "quick"), 600) == "quick"
        deadline.close()

    run(case())


def test_a_shorter_deadline_is_kept_behind_a_longer_one() -> None:
    async def case() -> None:
        deadline = Deadline()
        await deadline.keep(asyncio.sleep(0), 600)
        with pytest.raises(DeadlineExpired):
            await deadline.keep(asyncio.sleep(600), 0.02)
        deadline.close()

    run(case())


def test_a_timer_that_rings_early_interrupts_nothing() -> None:
    async def at_once() -> None:
        """Ends before the loop looks at its timers."""

    async def case() -> None:
        deadline = Deadline()
        await deadline.keep(at_once(), 0.02)
        assert await deadline.keep(asyncio.sleep(0.06, "in time"), 600) == "in time"
        await deadline.keep(at_once(), 0.02)
        await asyncio.sleep(0.06)
        deadline.close()

    run(case())


def test_errors_and_cancellations_of_others_stay_theirs() -> None:
    async def raises() -> None:
        raise TimeoutError("theirs")

    async def waits() -> None:
        await Deadline().keep(asyncio.sleep(600), 600)

    async def case() -> None:
        with pytest.raises(TimeoutError, match="theirs"):
            await Deadline().keep(raises(), 600)
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(case())


def test_an_outer_deadline_in_the_same_moment_wins() -> None:
    async def waits() -> None:
        deadline = Deadline()
        async with asyncio.timeout(0.02):
            try:
                await deadline.keep(asyncio.sleep(600), 0.02)
            except DeadlineExpired:
                # The clock may ring the one before the other: then the other still has to come.
                await asyncio.sleep(600)

    async def case() -> None:
        with pytest.raises(TimeoutError):
            await waits()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(case())


def test_waits_double_up_to_the_longest() -> None:
    assert list(islice(backoff(0.1, 0.5), 5)) == [0.1, 0.2, 0.4, 0.5, 0.5]
