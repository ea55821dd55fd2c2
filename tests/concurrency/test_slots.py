"""Slots: never more at once, none idle while somebody waits, fewest turns first."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from abut.concurrency.slots import Slots


def run(case: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(case, 10))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_fewest_turns_come_first_then_who_came_first() -> None:
    async def case() -> None:
        slots, served = Slots(1), []
        await slots.take(0)

        async def play(name: str, turns: int) -> None:
            await slots.take(turns)
            served.append(name)
            slots.give()

        players = [
            asyncio.create_task(play(name, turns))
            for name, turns in (("c", 2), ("a", 0), ("d", 2), ("b", 1))
        ]
        await settle()
        assert served == []
        slots.give()
        await asyncio.gather(*players)
        assert served == ["a", "b", "c", "d"]

    run(case())


def test_a_slot_that_is_handed_over_cannot_be_taken_by_another() -> None:
    async def case() -> None:
        slots = Slots(1)
        await slots.take(0)
        waiting = asyncio.create_task(slots.take(5))
        await settle()
        slots.give()
        other = asyncio.create_task(slots.take(0))
        await settle()
        assert waiting.done()
        assert not other.done()
        slots.give()
        await other

    run(case())


def test_who_is_cancelled_keeps_no_slot() -> None:
    async def case() -> None:
        slots = Slots(1)
        await slots.take(0)
        first, second = (asyncio.create_task(slots.take(turns)) for turns in (0, 1))
        await settle()
        first.cancel()  # while it waits
        await settle()
        slots.give()
        second.cancel()  # in the moment in which the slot is its own
        await settle()
        assert first.cancelled()
        assert second.cancelled()
        await slots.take(0)

    run(case())
