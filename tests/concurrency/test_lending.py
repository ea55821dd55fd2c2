"""A pool lends in the order of coming, whoever gives up while waiting."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from abut.concurrency.lending import LendingPool, Loan, PoolLoop
from abut.errors import EnvError


class Shelf(LendingPool[str]):
    """Lends what stands on it."""

    def __init__(self, *items: str) -> None:
        super().__init__()
        self.items = [*items]
        self.closed = False

    async def lend(self) -> str:
        return await self._next_in_line(0.0)

    def give_back(self, item: str) -> None:
        self.items.append(item)
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()

    async def line_ends(self) -> None:
        await self._line_ends()

    def _take(self) -> str | None:
        return self.items.pop(0) if self.items else None

    def _give_up(self, began: float) -> None:
        if self.closed:
            raise EnvError("closed")


def run(case: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(case, 20))


async def in_line(shelf: Shelf, number: int) -> list["asyncio.Task[str]"]:
    waiting = [asyncio.ensure_future(shelf.lend()) for _ in range(number)]
    for _ in range(3):
        await asyncio.sleep(0)
    return waiting


def test_who_came_first_is_served_first_and_nobody_overtakes() -> None:
    async def case() -> None:
        shelf = Shelf()
        first, second = await in_line(shelf, 2)
        shelf.give_back("a")
        late = asyncio.ensure_future(shelf.lend())
        shelf.give_back("b")
        assert [await first, await second] == ["a", "b"]
        shelf.give_back("c")
        assert await late == "c"

    run(case())


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_one_that_is_cancelled_keeps_nothing(gone: int) -> None:
    async def case() -> None:
        shelf = Shelf()
        waiting = await in_line(shelf, 3)
        shelf.give_back("a")  # in the same moment
        waiting.pop(gone).cancel()
        assert await waiting[0] == "a"
        shelf.give_back("b")
        assert await waiting[1] == "b"

    run(case())


def test_all_in_line_hear_that_waiting_is_of_no_use() -> None:
    async def case() -> None:
        shelf = Shelf()
        waiting = await in_line(shelf, 3)
        shelf.close()
        await shelf.line_ends()
        assert [str(task.exception()) for task in waiting] == ["closed"] * 3

    run(case())


def test_an_item_that_comes_when_nobody_waits_any_more_goes_back() -> None:
    async def case() -> None:
        shelf = Shelf("a")
        loan = Loan(shelf, PoolLoop("Shelf"))
        await loan.give_back()
        await loan.open()
        assert (loan.item, shelf.items) == (None, ["a"])

    run(case())
