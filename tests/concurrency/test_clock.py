"""A deadline cancels what takes too long, and takes nobody else's cancellation for its own."""

import asyncio
import time
from collections.abc import Coroutine
from itertools import islice
from typing import Any

import pytest

from abut.concurrency.clock import Deadline, DeadlineExpired, TimeLimit, backoff


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


def unspared() -> float:
    return 0.0


def test_a_limit_stands_still_while_anybody_pauses_it() -> None:
    async def case() -> None:
        limit, began = TimeLimit(0.05, unspared), time.monotonic()

        async def pauses() -> None:
            async with limit:
                with limit.paused(), limit.paused():
                    await asyncio.sleep(0.2)
                assert not limit.expired()
                await asyncio.sleep(600)

        with pytest.raises(TimeoutError):
            await pauses()
        assert limit.expired()
        assert time.monotonic() - began >= 0.25

    run(case())


def test_a_limit_says_that_it_is_over_and_ends_its_code_later() -> None:
    async def case() -> None:
        over, began = asyncio.Event(), time.monotonic()

        async def outlasts() -> None:
            async with TimeLimit(0.02, unspared) as limit:
                limit.on_over(over.set, 0.1)
                await over.wait()
                assert not limit.expired()
                await asyncio.sleep(600)

        with pytest.raises(TimeoutError):
            await outlasts()
        assert time.monotonic() - began >= 0.12

    run(case())


def test_a_pause_that_outlasts_its_limit_does_nothing() -> None:
    async def case() -> None:
        async with TimeLimit(0.02, unspared) as limit:
            pause = limit.paused()
            pause.__enter__()
        pause.__exit__(None, None, None)
        await asyncio.sleep(0.05)
        assert not limit.expired()

    run(case())


def test_waits_double_up_to_the_longest() -> None:
    assert list(islice(backoff(0.1, 0.5), 5)) == [0.1, 0.2, 0.4, 0.5, 0.5]
