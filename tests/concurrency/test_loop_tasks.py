"""Coroutines on a loop for who is on another one, on the same one, or on none."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import pytest

from abut.concurrency.loop import DaemonLoop

WAIT_S = 30.0


@pytest.fixture
def loop() -> Iterator[DaemonLoop]:
    loop = DaemonLoop("abut-test-loop")
    loop.open()
    yield loop
    loop.end(WAIT_S)


async def thread_name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def fails() -> None:
    raise KeyError("own")


def test_who_is_on_the_loop_itself_gets_results_and_errors_as_from_another(
    loop: DaemonLoop,
) -> None:
    tasks = loop.tasks()

    async def ask() -> Any:
        with pytest.raises(KeyError, match="own"):
            await tasks.ask(fails)
        return await tasks.ask(thread_name)

    assert loop.submit(ask).result(WAIT_S) == "abut-test-loop"
    assert asyncio.run(ask()) == "abut-test-loop"


def test_who_is_on_the_loop_itself_runs_it_in_the_own_task(loop: DaemonLoop) -> None:
    tasks = loop.tasks()

    async def which() -> Any:
        await asyncio.sleep(0)
        return asyncio.current_task()

    async def run() -> bool:
        with pytest.raises(KeyError, match="own"):
            await tasks.run(fails)
        return await tasks.run(which) is asyncio.current_task()

    assert loop.submit(run).result(WAIT_S)
    assert not asyncio.run(run())


def test_what_runs_in_the_own_task_is_cancelled_with_the_rest(loop: DaemonLoop) -> None:
    tasks = loop.tasks()

    async def run() -> None:
        asyncio.get_running_loop().call_soon(tasks.cancel)
        with pytest.raises(asyncio.CancelledError):
            await tasks.run(lambda: asyncio.sleep(WAIT_S))
        tasks.cancel()  # it is over
        await asyncio.sleep(0)

    loop.submit(run).result(WAIT_S)


def test_what_is_asked_for_is_cancelled_with_who_asked(loop: DaemonLoop) -> None:
    tasks = loop.tasks()
    cancelled = threading.Event()

    async def hangs() -> None:
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def ask() -> None:
        asked = tasks.ask(hangs)
        await asyncio.sleep(0)
        asked.cancel()

    loop.submit(ask).result(WAIT_S)
    assert cancelled.wait(WAIT_S / 2)


def test_what_is_stopped_before_it_begins_is_settled(loop: DaemonLoop) -> None:
    """Whoever waits for it would wait for ever."""
    tasks, others = loop.tasks(), loop.tasks()
    go_on = threading.Event()

    async def blocks() -> None:
        go_on.wait(WAIT_S)

    others.submit(blocks)
    submitted = tasks.submit(thread_name)
    tasks.stop()
    go_on.set()
    assert wait([submitted], WAIT_S).done
    with pytest.raises(asyncio.CancelledError):
        submitted.result()


def test_others_of_the_same_loop_go_on(loop: DaemonLoop) -> None:
    some = loop.tasks()
    kept = loop.submit(lambda: asyncio.sleep(0.05, "kept"))
    stopped = some.submit(lambda: asyncio.sleep(WAIT_S))
    some.stop()
    with pytest.raises(asyncio.CancelledError):
        stopped.result(WAIT_S)
    assert kept.result(WAIT_S) == "kept"
