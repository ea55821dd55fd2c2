"""Threads end when they are idle, and no call is lost; nothing that hangs keeps the process."""

import asyncio
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from abut.concurrency.threads import CallQueue, InterruptibleQueue, ThreadCache, _Waker
from abut.errors import EnvError
from tests.kit.stage.rollouts import eventually, own_threads

T = TypeVar("T")

pytestmark = pytest.mark.usefixtures("no_thread_stays")


@pytest.fixture
def threads(monkeypatch: Any) -> Iterator[ThreadCache]:
    """Threads of their own."""
    monkeypatch.setattr("os.register_at_fork", lambda **_: None, raising=False)  # it keeps them
    return ThreadCache("abut-test")


def on_a_loop(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it where rollouts are played: on a loop that is not the main thread's."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(make())).result(30)


def test_an_idle_thread_is_used_again(threads: ThreadCache, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("abut.concurrency.threads._IDLE_S", 3600.0)
        name = threading.current_thread
        names = {threads.submit(lambda: name().name).result() for _ in range(20)}
    names.add(threads.submit(lambda: name().name).result())  # and now it waits shortly
    assert names == {"abut-test-1"}


def test_an_idle_thread_ends_and_another_one_comes(threads: ThreadCache) -> None:
    for number in (1, 2):
        name = threads.submit(lambda: threading.current_thread().name).result()
        assert name == f"abut-test-{number}"
        assert eventually(lambda: not own_threads())


def test_as_many_run_as_are_called(threads: ThreadCache) -> None:
    """Each waits for all others: with one thread less, none would return."""
    meeting = threading.Barrier(50)
    waiting = [threads.submit(lambda: meeting.wait(10)) for _ in range(50)]
    assert sorted(future.result(10) for future in waiting) == [*range(50)]


def test_as_many_run_as_a_loop_asks_for(threads: ThreadCache) -> None:
    """They wake each other, and one that has begun and waits holds nobody back."""
    meeting = threading.Barrier(50)

    async def meet() -> list[int]:
        return await asyncio.gather(*(threads.ask(lambda: meeting.wait(10)) for _ in range(50)))

    assert sorted(on_a_loop(meet)) == [*range(50)]


def test_short_calls_share_few_threads_however_many_are_asked_for(threads: ThreadCache) -> None:
    async def name() -> set[str]:
        asked = (threads.ask(lambda: threading.current_thread().name) for _ in range(1000))
        return {*await asyncio.gather(*asked)}

    assert len(on_a_loop(name)) < 100


def test_a_call_may_be_the_last_one_by_its_own_word(threads: ThreadCache) -> None:
    async def name() -> set[str]:
        lent = [threads.call_queue() for _ in range(1000)]

        def call(k: int) -> str:
            lent[k].end_with_call()
            return threading.current_thread().name

        return {*await asyncio.gather(*(lent[k].ask(lambda k=k: call(k)) for k in range(1000)))}

    assert len(on_a_loop(name)) < 100


def test_what_comes_behind_a_last_call_holds_nobody_else(threads: ThreadCache) -> None:
    """The thread of that call is free, and what comes behind it gets one of its own."""
    began, go, hold = threading.Event(), threading.Event(), threading.Event()
    ours = threads.call_queue()

    def end() -> None:
        began.set()
        assert go.wait(10)
        ours.end_with_call()

    ended = ours.submit(end)
    hanging = ours.submit(lambda: hold.wait(10), last=True)
    assert began.wait(10)
    go.set()
    ended.result(10)
    for _ in range(20):
        assert threads.submit(lambda: 7).result(5) == 7
    assert not hanging.done()
    hold.set()
    assert hanging.result(10)


def test_where_none_starts_those_who_wait_are_told(threads: ThreadCache, monkeypatch: Any) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    async def call() -> list[Any]:
        lent = threads.call_queue()
        asked = [lent.ask(lambda: 1), lent.ask(lambda: 2, last=True), threads.ask(lambda: 3)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr("abut.concurrency.threads._CachedThread.__init__", refuse)
        errors = on_a_loop(call)
    assert [type(error) for error in errors] == [EnvError] * 3
    assert "hint: each synchronous environment" in str(errors[0])
    assert on_a_loop(call) == [1, 2, 3]


def test_what_waits_behind_a_call_that_hangs_holds_nobody_back(threads: ThreadCache) -> None:
    hold = threading.Event()

    async def call() -> list[int]:
        hanging = [threads.call_queue() for _ in range(10)]
        waiting = [thread.ask(hold.wait) for thread in hanging]
        waiting += [thread.ask(lambda: True, last=True) for thread in hanging]
        answers = await asyncio.gather(*(threads.ask(lambda k=k: k) for k in range(10)))
        hold.set()
        assert all(await asyncio.gather(*waiting))
        return answers

    assert on_a_loop(call) == [*range(10)]


class Sleeper(CallQueue):
    """Counts how often it is woken, and never is up by itself."""

    woken = 0

    def wake(self, waker: _Waker | None = None) -> None:
        self.woken += 1


def test_two_are_on_their_way_however_many_are_woken(threads: ThreadCache) -> None:
    waker, sleepers = _Waker(), [Sleeper(threads) for _ in range(5)]

    async def wake() -> None:
        for sleeper in sleepers:
            waker.wake(sleeper)
        for up in range(2, 6):
            assert [sleeper.woken for sleeper in sleepers] == [1] * up + [0] * (5 - up)
            waker.is_up()

    on_a_loop(wake)


def test_no_call_is_lost_to_a_thread_that_ends_in_that_moment(
    threads: ThreadCache, monkeypatch: Any
) -> None:
    """The next call comes as its thread has waited just as long as an idle one does."""
    monkeypatch.setattr("abut.concurrency.threads._IDLE_S", 0.0005)
    for k in range(2000):
        assert threads.submit(lambda k=k: k).result(10) == k
        time.sleep(0.0004 + 0.0002 * (k % 2))
    assert next(threads._numbers) > 2, "no thread ended: the moment was never met"


def test_a_lent_thread_runs_the_calls_of_its_borrower_in_order(threads: ThreadCache) -> None:
    ours, theirs = threads.call_queue(), threads.call_queue()
    hold = threading.Event()
    order: list[str] = []
    theirs.submit(hold.wait)
    calls = [ours.submit(lambda k=k: order.append(k) or threading.get_ident()) for k in range(50)]
    assert len({call.result(10) for call in calls}) == 1
    assert order == [*range(50)]
    hold.set()
    ours.give_back()
    theirs.give_back()


def test_a_lent_thread_stays_while_nobody_calls_and_is_nobody_elses(
    threads: ThreadCache, monkeypatch: Any
) -> None:
    monkeypatch.setattr("abut.concurrency.threads._IDLE_S", 0.001)
    ours = threads.call_queue()
    name = ours.submit(lambda: threading.current_thread().name).result(10)
    others = {threads.submit(lambda: threading.current_thread().name).result(10) for _ in range(20)}
    time.sleep(0.05)  # many times as long as an idle thread waits
    assert name not in others
    assert ours.submit(lambda: threading.current_thread().name, last=True).result(10) == name


def test_a_call_that_is_cancelled_before_it_begins_is_not_run(threads: ThreadCache) -> None:
    ours, hold, ran = threads.call_queue(), threading.Event(), []
    first = ours.submit(lambda: hold.wait(10))
    second, third = (
        ours.submit(lambda: ran.append(2)),
        ours.submit(lambda: ran.append(3), last=True),
    )
    assert second.cancel()
    hold.set()
    assert first.result(10)
    third.result(10)
    assert ran == [3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    """Also where threads of the parent were idle, or on their way up, when it forked."""
    code = """
import os
from concurrent.futures import ThreadPoolExecutor
from abut.concurrency.threads import THREADS
THREADS.submit(lambda: None).result()
THREADS.waker._free.clear()
child = os.fork()
if not child:
    with ThreadPoolExecutor(1) as pool:
        os._exit(pool.submit(lambda: THREADS.submit(lambda: 7).result(10)).result(20))
assert THREADS.submit(lambda: 8).result(10) == 8
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], timeout=60, check=True, capture_output=True
    )
    assert done.stdout == b"7\n"


def test_a_queue_that_can_be_interrupted_waits_as_any_other() -> None:
    waiting: InterruptibleQueue[int] = InterruptibleQueue()
    with pytest.raises(queue.Empty):
        waiting.get(timeout=0.01)
    with pytest.raises(queue.Empty):
        waiting.get(block=False)
    threading.Timer(0.4, waiting.put, [7]).start()  # longer than it waits in one go
    assert waiting.get() == 7


def test_a_call_that_hangs_does_not_keep_the_process_alive() -> None:
    code = (
        "import time; from abut.concurrency.threads import THREADS;"
        "THREADS.submit(lambda: time.sleep(600))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=True).returncode == 0
