"""Calls that start processes take turns, and a call that was given up holds nothing up."""

import asyncio
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from abut.concurrency.process_turns import PROCESS_TURNS, CallGivenUp
from abut.concurrency.threads import THREADS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")

WAIT_S = 60.0


class Kind: ...


KINDS: defaultdict[str, Kind] = defaultdict(Kind)


def fork() -> int:
    """Fork a child that ends at once; its exit code."""
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join(WAIT_S)
    assert process.exitcode is not None
    return process.exitcode


def spawn() -> int:
    return subprocess.run([sys.executable, "-S", "-c", ""], timeout=WAIT_S).returncode


def in_turn(kind: str, call: Callable[[], Any]) -> Any:
    """Begin a call on a thread; its turn and its future."""
    turn = PROCESS_TURNS.turn(lambda: KINDS[kind], lambda: kind)
    return turn, THREADS.submit(turn.around(call))


class Inside:
    """A call that forks or spawns, and then stays until it may go."""

    def __init__(self, start: Callable[[], int]) -> None:
        self.start = start
        self.is_there = threading.Event()
        self.let_go = threading.Event()

    def __call__(self) -> int:
        code = self.start()
        self.is_there.set()
        assert self.let_go.wait(WAIT_S)
        return code


def waits(turn: Any) -> bool:
    """Whether a call waits, once it does."""
    done = threading.Event()
    while not turn.waited_s and not turn.is_over:
        done.wait(0.001)
    return not turn.is_over


def test_a_call_waits_where_it_is_about_to_fork(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Inside(fork), Inside(fork)
    with caplog.at_level(logging.WARNING, "abut"):
        _, one = in_turn("one that forks", first)
        assert first.is_there.wait(WAIT_S)
        turn, two = in_turn("another that forks", second)
        assert waits(turn)
        assert not second.is_there.is_set()
        first.let_go.set()
        assert second.is_there.wait(WAIT_S)
        second.let_go.set()
    assert (one.result(WAIT_S), two.result(WAIT_S)) == (0, 0)
    assert [text.partition(" forks this")[0] for text in caplog.messages] == [
        "one that forks",
        "another that forks",
    ]
    assert "run one after the other\nhint: use subprocess.run without preexec_fn" in caplog.text


def test_a_call_of_a_kind_that_forks_begins_in_its_turn() -> None:
    assert in_turn("known", fork)[1].result(WAIT_S) == 0
    first, began = Inside(fork), threading.Event()
    _, one = in_turn("known", first)
    assert first.is_there.wait(WAIT_S)
    turn, two = in_turn("known", began.set)
    assert waits(turn)
    assert not began.is_set()
    first.let_go.set()
    two.result(WAIT_S)
    assert began.is_set()
    assert one.result(WAIT_S) == 0


def test_subprocesses_run_beside_each_other_and_beside_no_fork() -> None:
    first, second, third = Inside(spawn), Inside(spawn), Inside(fork)
    calls = [in_turn("spawns", call) for call in (first, second)]
    assert first.is_there.wait(WAIT_S)
    assert second.is_there.wait(WAIT_S)
    turn, forking = in_turn("forks beside them", third)
    assert waits(turn)
    for call in (first, second, third):
        call.let_go.set()
    assert [call.result(WAIT_S) for _, call in calls] == [0, 0]
    assert forking.result(WAIT_S) == 0


def test_a_call_that_was_given_up_holds_up_nothing_and_forks_no_more() -> None:
    def stays_and_forks() -> int:
        fork()
        assert first.let_go.wait(WAIT_S)
        return fork()

    first = Inside(fork)
    turn, one = in_turn("given up", stays_and_forks)
    other, two = in_turn("waits for it", fork)
    turn_held = threading.Event()
    while turn.holds is None and other.holds is None:
        turn_held.wait(0.001)
    turn.end()
    assert two.result(WAIT_S) == 0
    first.let_go.set()
    with pytest.raises(CallGivenUp):
        one.result(WAIT_S)


def test_the_next_waits_for_the_fork_of_a_call_that_was_given_up() -> None:
    forks, goes_on = threading.Event(), threading.Event()

    def stays() -> None:
        if not forks.is_set():
            forks.set()
            assert goes_on.wait(WAIT_S)

    os.register_at_fork(after_in_parent=stays)
    turn, one = in_turn("given up while it forks", fork)
    assert forks.wait(WAIT_S)
    turn.end()
    other, two = in_turn("has its turn", fork)
    while other.holds is None:
        goes_on.wait(0.001)
    with pytest.raises(TimeoutError):
        two.result(0.2)
    goes_on.set()
    assert (one.result(WAIT_S), two.result(WAIT_S)) == (0, 0)


def test_a_waiting_call_that_is_given_up_ends() -> None:
    first = Inside(fork)
    _, one = in_turn("holds", first)
    assert first.is_there.wait(WAIT_S)
    turn, two = in_turn("waits", fork)
    assert waits(turn)
    turn.end()
    with pytest.raises(CallGivenUp):
        two.result(WAIT_S)
    first.let_go.set()
    assert one.result(WAIT_S) == 0


def test_threads_of_a_call_count_as_that_call() -> None:
    """A pool of multiprocessing forks on a thread of its own where it replaces a worker."""

    def elsewhere() -> int:
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(fork()))
        thread.start()
        thread.join(WAIT_S)
        return codes[0]

    first = Inside(elsewhere)
    turn, one = in_turn("by threads", first)
    assert first.is_there.wait(WAIT_S)
    assert turn.holds == "fork"
    first.let_go.set()
    assert one.result(WAIT_S) == 0


def test_a_fork_in_a_forked_child_waits_for_nobody() -> None:
    turn, one = in_turn("forks twice", lambda: _exit_code_of(fork))
    assert one.result(WAIT_S) == 0
    assert turn.is_over


def _exit_code_of(call: Callable[[], int]) -> int:
    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    process.join(WAIT_S)
    assert process.exitcode is not None
    return process.exitcode


def test_a_coroutine_waits_for_its_turn_and_holds_up_no_loop() -> None:
    assert in_turn("async", fork)[1].result(WAIT_S) == 0
    first = Inside(fork)
    _, one = in_turn("async", first)
    assert first.is_there.wait(WAIT_S)

    async def case() -> None:
        turn = PROCESS_TURNS.turn(lambda: KINDS["async"], lambda: "async")

        async def play() -> int:
            return fork()

        playing = asyncio.ensure_future(turn.on_loop(play))
        while not turn.waited_s:
            await asyncio.sleep(0.001)  # the loop turns
        assert not playing.done()
        first.let_go.set()
        assert await playing == 0

    asyncio.run(asyncio.wait_for(case(), WAIT_S))
    assert one.result(WAIT_S) == 0


def test_who_plays_nothing_of_ours_forks_as_ever() -> None:
    first = Inside(fork)
    _, one = in_turn("beside the trainer", first)
    assert first.is_there.wait(WAIT_S)
    assert fork() == 0
    first.let_go.set()
    assert one.result(WAIT_S) == 0


def test_a_turn_that_is_over_keeps_nothing_of_its_call_alive() -> None:
    class Owner:
        def __init__(self) -> None:
            self.turn = PROCESS_TURNS.turn(self.kind, lambda: str(self))

        def kind(self) -> Any:
            return type(self)

    owner = Owner()
    gone = weakref.ref(owner)
    owner.turn.end()
    del owner  # no garbage collector is needed
    assert gone() is None
