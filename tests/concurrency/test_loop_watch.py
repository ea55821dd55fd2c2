"""A watched loop knows which call blocks it, and spares all others that time."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from abut.concurrency.loop_watch import LoopWatch, WatchedCall, WatchedLoop, wait_sparing
from tests.kit.stage.rollouts import eventually, own_threads

pytestmark = pytest.mark.usefixtures("no_thread_stays")


class Told:
    """Keeps what a watch says."""

    def __init__(self) -> None:
        self.blocked: list[tuple[WatchedCall[Any], str]] = []
        self.lost: list[LoopWatch] = []

    def block(self, call: WatchedCall[Any], place: str) -> None:
        self.blocked.append((call, place))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def loop(told: Told) -> Iterator[WatchedLoop]:
    loop = WatchedLoop("abut-test-loop", told.block, told.lost.append)
    loop.open()
    yield loop
    loop.end(60)


def run(case: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(case, 60))


def test_time_in_which_the_loop_stands_still_counts_for_the_call_that_blocks(
    loop: WatchedLoop, told: Told
) -> None:
    async def blocks() -> None:
        eventually(lambda: told.blocked != [])

    async def case() -> None:
        over = asyncio.Event()
        waits = loop.call(int, "waits", over.wait)
        blocking = loop.call(str, "blocks", blocks)
        await blocking.future
        ((call, place),) = told.blocked
        assert call is blocking
        assert f'File "{__file__}"' in place
        assert blocking.blocked_s >= 0.9
        assert blocking.spared_s() == 0
        assert waits.spared_s() == pytest.approx(blocking.blocked_s)
        await loop.ask(lambda: _set(over))
        await waits.future

    run(case())
    assert not told.lost


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_a_limit_within_a_call_does_not_count_that_time_either(
    loop: WatchedLoop, told: Told
) -> None:
    async def blocks() -> None:
        eventually(lambda: told.blocked != [])

    async def waits() -> bool:
        waiting.set()
        task = asyncio.ensure_future(asyncio.to_thread(eventually, lambda: told.blocked != []))
        await wait_sparing([task], 0.5)
        return task.done()

    waiting = threading.Event()

    async def case() -> None:
        limited = loop.call(int, "waits", waits)
        await asyncio.to_thread(waiting.wait, 60)
        await loop.call(str, "blocks", blocks).future
        assert await limited.future

    run(case())


def test_the_limit_within_a_call_ends_what_nobody_holds_up() -> None:
    async def case() -> None:
        task = asyncio.ensure_future(asyncio.sleep(600))
        await wait_sparing([task], 0.02)
        assert not task.done()
        task.cancel()

    run(case())


def test_a_loop_is_lost_where_a_call_blocks_it_that_nobody_waits_for(
    loop: WatchedLoop, told: Told
) -> None:
    over, begun = threading.Event(), threading.Event()

    async def blocks() -> None:
        begun.set()
        over.wait(60)

    async def case() -> None:
        call = loop.call(str, "blocks", blocks)
        await asyncio.to_thread(begun.wait, 60)
        call.future.cancel()
        other = loop.call(int, "waits", lambda: asyncio.sleep(0))
        assert await asyncio.to_thread(eventually, lambda: told.lost == [loop.watch])
        assert other.is_held_up
        assert other.blamed == ", because blocks blocks the event loop on which both run"
        assert not call.is_held_up
        assert not call.blamed
        over.set()
        await other.future

    run(case())


def test_a_busy_loop_that_turns_is_not_blocked(loop: WatchedLoop, told: Told) -> None:
    async def turns() -> None:
        for _ in range(100_000):
            await asyncio.sleep(0)

    async def case() -> None:
        await asyncio.gather(*(loop.call(str, "turns", turns).future for _ in range(4)))

    run(case())
    assert not told.blocked


def test_the_watch_ends_some_time_after_the_last_call(loop: WatchedLoop) -> None:
    async def looks() -> list[str]:
        return own_threads()

    def nothing_watches() -> bool:
        return "abut-loop-watch" not in own_threads()

    async def case() -> None:
        for _ in range(2):
            assert "abut-loop-watch" in await loop.call(str, "looks", looks).future
            assert await asyncio.to_thread(eventually, nothing_watches)

    run(case())
