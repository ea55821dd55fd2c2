"""A call in a forked child is on a main thread, and its answer comes back whatever it is."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from abut.concurrency.forked_call import ForkedCall
from abut.concurrency.process_turns import PROCESS_TURNS
from abut.concurrency.threads import THREADS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")

WAIT_S = 60.0


def forked(call: Callable[[], Any]) -> ForkedCall[Any]:
    return ForkedCall(call, PROCESS_TURNS.turn(lambda: call, lambda: "a test"))


def answer_of(call: Callable[[], Any]) -> Any:
    return THREADS.submit(forked(call).run).result(WAIT_S)


def rings() -> str:
    class Rang(Exception): ...

    def ring(*_: Any) -> None:
        raise Rang

    signal.signal(signal.SIGALRM, ring)
    with suppress(Rang):
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        signal.pause()
        return "went on"
    return "rang"


def test_an_alarm_rings_in_it() -> None:
    assert answer_of(rings) == "rang"


def test_what_it_raises_comes_back_with_its_traceback() -> None:
    def fails() -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError) as raised:
        answer_of(fails)
    assert "in fails" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: lambda: None, "function cannot be pickled to be sent from its process"),
        (lambda: os._exit(3), "its process ended without an answer: exit code 3"),
    ],
)
def test_no_answer_says_why(call: Any, error: str) -> None:
    with pytest.raises(RuntimeError, match=error):
        answer_of(call)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_killed_one_ends(pipe: tuple[int, int]) -> None:
    def stays() -> None:
        os.write(pipe[1], b"there")
        threading.Event().wait()

    call = forked(stays)
    answer = THREADS.submit(call.run)
    os.read(pipe[0], 5)
    call.kill()
    with pytest.raises(RuntimeError, match="exit code -9"):
        answer.result(WAIT_S)


def test_other_calls_fork_while_it_runs(pipe: tuple[int, int]) -> None:
    """Only its fork itself is in turn, so that a slow one holds nobody up."""

    def stays() -> bytes:
        return os.read(pipe[0], 1)

    answer = THREADS.submit(forked(stays).run)
    assert answer_of(os.getpid) != os.getpid()
    os.write(pipe[1], b"!")
    assert answer.result(WAIT_S) == b"!"
