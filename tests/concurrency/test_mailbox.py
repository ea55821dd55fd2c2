"""A loop has one mailbox, which wakes it once for all that is there, and does not keep it alive."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from abut.concurrency.loop import DaemonLoop
from abut.concurrency.mailbox import Mailbox, settles_on_loop
from abut.concurrency.threads import THREADS
from tests.kit.stage.rollouts import eventually


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often another thread woke it."""

    woken = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> Any:
        self.woken += 1
        return super().call_soon_threadsafe(*args, **kwargs)


@pytest.fixture
def loop() -> Any:
    loop = CountingLoop()
    yield loop
    loop.close()


def on_another_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_loop_has_one_mailbox(loop: Any) -> None:
    found: list[Mailbox] = []
    on_another_thread(lambda: found.append(Mailbox.of(loop)))
    assert found == [Mailbox.of(loop)]
    other = asyncio.new_event_loop()
    assert Mailbox.of(other) is not found[0]
    other.close()


def test_a_mailbox_keeps_no_loop_alive() -> None:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    settle, gone = settles_on_loop(future), weakref.ref(loop)
    mailbox = Mailbox.of(loop)
    loop.close()
    del loop, future, settle
    gc.collect()
    assert gone() is None
    mailbox.put(lambda: None)  # nobody waits


@pytest.mark.parametrize("put_before", [False, True])
def test_what_comes_after_a_loop_was_closed_keeps_it_no_more_alive(put_before: bool) -> None:
    """As the result of a step that outlasts its batch, with all that its error holds."""
    loop = asyncio.new_event_loop()
    future, gone = loop.create_future(), weakref.ref(loop)
    settle = settles_on_loop(future)
    if put_before:  # the loop is woken, and never runs again
        settle(1, None)
    loop.close()
    Mailbox.drop(loop)
    settle(None, ValueError("late"))
    del loop, future, settle
    gc.collect()
    assert gone() is None


def test_a_loop_is_woken_once_for_all_that_is_there(loop: Any) -> None:
    futures = [loop.create_future() for _ in range(100)]

    def settle_all() -> None:
        for k, future in enumerate(futures):
            settles_on_loop(future)(k, None)

    on_another_thread(settle_all)
    assert loop.run_until_complete(asyncio.wait_for(asyncio.gather(*futures), 10)) == [*range(100)]
    assert loop.woken == 1


def test_threads_and_loops_answer_through_the_mailbox_of_who_asks(loop: Any) -> None:
    """Each answer had a mailbox of its own once, so that each woke the loop."""
    other = DaemonLoop("abut-test-loop")
    other.open()
    here = threading.Barrier(9)

    def meet(k: int) -> int:
        here.wait(10)
        return k

    async def answer(k: int) -> int:
        return k

    async def ask_all() -> list[int]:
        asked = [THREADS.ask(lambda k=k: meet(k)) for k in range(8)]
        asked += [other.ask(lambda k=k: answer(k)) for k in range(8, 16)]
        here.wait(10)
        assert eventually(lambda: len(Mailbox.of(loop)._calls) == 16)
        await asyncio.wait(asked, timeout=10)
        return [future.result() for future in asked]

    assert loop.run_until_complete(ask_all()) == [*range(16)]
    assert loop.woken == 1
    other.end(5)
