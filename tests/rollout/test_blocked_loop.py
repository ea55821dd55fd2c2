"""An asynchronous environment that blocks its loop is named, and costs others nothing."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from abut.concurrency.clock import Deadline, TimeLimit
from tests.kit.stage.rollouts import Stage, Talk, assert_done, asynced, eventually, own_threads

pytestmark = pytest.mark.usefixtures("no_thread_stays")

SHORT_S = 2.0
"""The limit of a neighbour, which ends while the loop is blocked."""


@pytest.fixture
def rang(monkeypatch: Any) -> threading.Event:
    """Set as soon as the limit of a call is reached."""
    event = threading.Event()
    ring = Deadline._ring

    def note(self: Deadline) -> None:
        ring(self)
        event.set()

    monkeypatch.setattr(Deadline, "_ring", note)
    return event


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def pair(over: Callable[[], object], *, method: str = "reset") -> tuple[Any, Any]:
    """A neighbour in its step, and an environment that blocks meanwhile until `over` returns."""
    stepping, released = threading.Event(), threading.Event()
    base = asynced(Talk)

    class Neighbour(base):  # type: ignore[misc,valid-type]
        async def step(self, action: str) -> Any:
            stepping.set()
            await until(released.is_set)
            return await base.step(self, action)

    class Blocking(base):  # type: ignore[misc,valid-type]
        loops: ClassVar[list[str]] = []

    async def blocks(self: Any, text: str) -> Any:
        self.loops.append(threading.current_thread().name)
        if not released.is_set():
            await until(stepping.is_set)
            try:
                over()
            finally:
                released.set()
        return await getattr(base, method)(self, text)

    setattr(Blocking, method, blocks)
    return Blocking, Neighbour


def warnings(caplog: Any) -> list[str]:
    return [r.message for r in caplog.records if "has blocked the event loop" in r.message]


def test_a_neighbour_whose_limit_is_shorter_than_the_block_does_not_fail(
    stage: Stage, rang: threading.Event
) -> None:
    blocking, neighbour = pair(lambda: rang.wait(60))
    played = stage.play(blocking, neighbour, retries=0, step_timeout_s=SHORT_S)
    for rollout in played.rollouts:
        assert_done(rollout)
        assert rollout.attempts == 1
    assert rang.is_set()


def test_the_warning_names_the_environment_and_its_line_once(
    stage: Stage, caplog: Any, rang: threading.Event
) -> None:
    blocking, neighbour = pair(lambda: eventually(lambda: warnings(caplog) != []))
    stage.play(blocking, neighbour, blocking, retries=0)
    (warning,) = warnings(caplog)
    assert warning.startswith("Blocking.reset has blocked the event loop")
    assert "environments of this class get their own event loop and thread" in warning
    place = warning.partition("(most recent call last):\n")[2]
    assert place.startswith(f'  File "{__file__}", line ')
    assert "in blocks\n    over()" in place
    assert "hint: await instead, or use asyncio.to_thread" in warning


def test_the_class_has_a_loop_of_its_own_from_its_next_attempt(stage: Stage, caplog: Any) -> None:
    blocking, neighbour = pair(lambda: eventually(lambda: warnings(caplog) != []))
    engine = stage.play(blocking, neighbour).engine
    for rollout in engine.run(stage.tasks([blocking, neighbour])):
        assert_done(rollout)
    assert blocking.loops == ["abut-env-loop", "abut-env-loop-Blocking"]


def test_a_class_that_is_alone_on_its_loop_stays_there(stage: Stage, caplog: Any) -> None:
    loops = set()

    class Alone(asynced(Talk)):  # type: ignore[misc]
        async def reset(self, seed: str) -> Any:
            loops.add(asyncio.get_running_loop())
            if len(loops) == 1 and not warnings(caplog):
                eventually(lambda: warnings(caplog) != [])
            return Talk.reset(self, seed)

    engine = stage.play(Alone).engine
    for rollout in engine.run(stage.tasks([Alone, asynced(Talk)])):
        assert_done(rollout)
    assert len(loops) == 1


def test_a_task_that_the_environment_starts_is_the_environments(stage: Stage, caplog: Any) -> None:
    class Starts(asynced(Talk)):  # type: ignore[misc]
        async def step(self, action: str) -> Any:
            await asyncio.wait_for(self.ask(), 60)
            return Talk.step(self, action)

        async def ask(self) -> None:
            eventually(lambda: warnings(caplog) != [])

    assert_done(stage.play(Starts).one)
    assert warnings(caplog)[0].startswith("Starts.step has blocked")


def test_a_callback_is_told_of_though_nobody_knows_whose_it_is(stage: Stage, caplog: Any) -> None:
    class Calls(asynced(Talk)):  # type: ignore[misc]
        async def step(self, action: str) -> Any:
            done = asyncio.Event()

            def blocks() -> None:
                eventually(lambda: warnings(caplog) != [])
                done.set()

            asyncio.get_running_loop().call_soon(blocks)
            await done.wait()
            return Talk.step(self, action)

    assert stage.play(Calls).one.error is None
    (warning,) = warnings(caplog)
    assert warning.startswith("A callback has blocked")
    assert "in blocks" in warning


def test_the_time_of_a_rollout_is_not_that_of_a_neighbour_that_blocks(
    stage: Stage, monkeypatch: Any
) -> None:
    over, ring = threading.Event(), TimeLimit._ring

    def note(self: TimeLimit) -> None:
        ring(self)
        rings.append(self.expired())
        if len(rings) == 2:
            over.set()

    rings: list[bool] = []
    monkeypatch.setattr(TimeLimit, "_ring", note)
    blocking, neighbour = pair(lambda: over.wait(60))
    first, second = stage.play(blocking, neighbour, retries=0, rollout_timeout_s=SHORT_S).rollouts
    assert first.error == f"EnvError: the rollout took longer than rollout_timeout_s={SHORT_S:g}"
    assert_done(second)
    assert sorted(rings[:2]) == [False, True]


def test_a_neighbour_of_one_that_never_returns_plays_again_for_free(
    stage: Stage, monkeypatch: Any
) -> None:
    over = threading.Event()
    monkeypatch.setattr("abut.rollout.env_loops._CLOSE_S", 0.25)
    blocking, neighbour = pair(lambda: over.wait(60))
    monkeypatch.setattr(neighbour, "step", once_stuck(neighbour.step, asynced(Talk).step))
    try:
        first, second = stage.play(
            blocking, neighbour, retries=0, reset_timeout_s=SHORT_S, step_timeout_s=SHORT_S
        ).rollouts
    finally:
        over.set()
    assert "Blocking.reset did not answer within reset_timeout_s=2" in first.error
    assert first.attempts == 1
    assert_done(second)
    assert second.attempts == 2
    (error,) = second.attempt_errors
    assert "because Blocking.reset blocks the event loop on which both run" in error
    assert "in blocks" in second.attempt_tracebacks[0]


def once_stuck(stuck: Any, free: Any) -> Any:
    calls: list[Any] = []

    async def step(self: Any, action: str) -> Any:
        calls.append(self)
        return await (stuck if len(calls) == 1 else free)(self, action)

    return step


def test_nothing_watches_where_no_asynchronous_environment_plays(stage: Stage) -> None:
    class Looks(Talk):
        def say(self) -> str:
            return " ".join(own_threads())

    said = stage.play(Looks).one.messages
    assert "abut-loop" in said[0]["content"]
    assert not any("abut-loop-watch" in message["content"] for message in said)
