"""Turns that wait for a sampler of this process, and how it is served."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from abut.errors import SamplerError
from abut.samplers.in_process import PendingTurns
from abut.samplers.sampler import Sample, SampleRequest
from tests.kit.stage.rollouts import Stage, Talk


def request(turn: int = 0) -> SampleRequest:
    return SampleRequest(np.arange(3), 4, (), 0, "r0", turn)


def a_sample(asked: SampleRequest) -> Sample:
    return Sample(np.asarray([asked.turn]), np.asarray([-1.0], np.float32), "length")


@pytest.fixture
def loop() -> Any:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def wait_for(turns: PendingTurns, loop: Any, count: int) -> list[asyncio.Task[Sample]]:
    """So many turns that wait."""
    tasks = [loop.create_task(turns.sample(request(k))) for k in range(count)]
    loop.run_until_complete(asyncio.sleep(0))
    return tasks


def test_turns_are_taken_in_order_and_not_more_than_asked_for(loop: Any) -> None:
    turns = PendingTurns()
    tasks = wait_for(turns, loop, 5)
    taken = [[turn.request.turn for turn in turns.take(0.0, n)] for n in (2, 2, None, None)]
    assert taken == [[0, 1], [2, 3], [4], []]
    loop.run_until_complete(_cancelled(tasks))


async def _cancelled(tasks: list[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_turn_that_was_given_up_is_not_handed_out(loop: Any) -> None:
    turns = PendingTurns()
    tasks = wait_for(turns, loop, 3)
    loop.run_until_complete(_cancelled(tasks[1:2]))
    taken = turns.take(None)
    assert [turn.request.turn for turn in taken] == [0, 2]
    loop.run_until_complete(_cancelled(tasks))
    assert [turn.given_up for turn in taken] == [True, True]


def test_an_answer_that_comes_too_late_is_thrown_away(loop: Any) -> None:
    turns = PendingTurns()
    gone, kept = wait_for(turns, loop, 2)
    taken = turns.take(0.0)
    loop.run_until_complete(_cancelled([gone]))
    for turn in taken:
        turn.answer(a_sample(turn.request))
        turn.answer(a_sample(request(9)))
    assert loop.run_until_complete(kept).ids.tolist() == [1]
    assert gone.cancelled()


def test_waiting_ends_with_the_first_turn_with_time_and_with_the_end() -> None:
    turns = PendingTurns()
    began = time.monotonic()
    assert turns.take(0.05) == []
    assert time.monotonic() - began >= 0.04
    assert not turns.closed
    error = ValueError("boom")
    threading.Timer(0.05, lambda: turns.close(error)).start()
    assert turns.take(None) == []
    assert (turns.closed, turns.error) == (True, error)
    assert turns.take(None) == [], "and it does not wait for ever"


class Stream:
    """Samples the same for each turn, at once; stops after `until` turns."""

    def __init__(self, ids: Any, until: int = 1000) -> None:
        self.ids = list(ids)
        self.until = until
        self.threads: set[str] = set()

    def sample_stream(self, turns: PendingTurns) -> None:
        while not turns.closed and self.until > 0:
            for turn in turns.take(None):
                self.until -= 1
                self.threads.add(threading.current_thread().name)
                logprobs = np.full(len(self.ids), -1.0, np.float32)
                turn.answer(Sample(np.asarray(self.ids), logprobs, "stop"))


def test_a_stream_is_sampled_on_the_calling_thread(stage: Stage) -> None:
    sampler = Stream(stage.says()(request()))
    played = stage.play(*[Talk] * 4, sampler=sampler)
    assert [rollout.stop_reason for rollout in played.rollouts] == ["env_done"] * 4
    assert sampler.threads == {threading.current_thread().name}


def test_a_stream_that_ends_too_early_is_an_error(stage: Stage, no_thread_stays: Any) -> None:
    with pytest.raises(SamplerError) as raised:
        stage.play(*[Talk] * 4, sampler=Stream(stage.says()(request()), until=5))
    assert str(raised.value) == (
        "sample_stream returned while rollouts still need samples\nhint: sample_stream must "
        "run until turns.closed is True"
    )


def test_a_batch_that_fails_says_so_to_all_who_wait(stage: Stage, no_thread_stays: Any) -> None:
    class Broken:
        def sample_batch(self, requests: Any) -> Any:
            raise RuntimeError("out of memory")

    class Short:
        def sample_batch(self, requests: Any) -> Any:
            return []

    with pytest.raises(RuntimeError, match="out of memory"):
        stage.play(*[Talk] * 4, sampler=Broken())
    with pytest.raises(SamplerError) as raised:
        stage.play(*[Talk] * 4, sampler=Short())
    assert str(raised.value) == "sample_batch returned 0 samples for 4 requests"
