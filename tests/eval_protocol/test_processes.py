"""Bodies that start processes score as under pytest, and bodies run as many at once as they say."""

import asyncio
import logging
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

pytest.importorskip("eval_protocol")

from eval_protocol.models import EvaluateResult, EvaluationRow, Message
from eval_protocol.pytest import SingleTurnRolloutProcessor, evaluation_test

from abut.eval_protocol import eval_test
from tests.kit.stage.evals import play_test
from tests.kit.stage.rollouts import Stage

WAIT_S = 60.0
FORK = multiprocessing.get_context("fork")


def score_of(body: Callable[[], float], **decorated: Any) -> Any:
    @evaluation_test(
        input_messages=[[[Message(role="user", content=f"n {k}")] for k in range(8)]],
        completion_params=[{"model": "openai/m"}],
        rollout_processor=SingleTurnRolloutProcessor(),
        **decorated,
    )
    def test_it(row: EvaluationRow) -> EvaluationRow:
        try:
            score = body()
        except Exception as error:  # as code execution does: what fails scores 0.0
            row.evaluation_result = EvaluateResult(score=0.0, reason=str(error))
            return row
        row.evaluation_result = EvaluateResult(score=score, reason="")
        return row

    return test_it


def one() -> float:
    return 1.0


def in_a_process() -> float:
    with FORK.Pool(1) as pool:
        return pool.apply(one)


def in_an_executor() -> float:
    with ProcessPoolExecutor(1, FORK) as pool:
        return pool.submit(one).result(WAIT_S)


def in_both() -> float:
    process = FORK.Process(target=one)
    process.start()
    done = subprocess.run([sys.executable, "-S", "-c", "print(1.0)"], capture_output=True)
    process.join(WAIT_S)
    return float(done.stdout)


@pytest.mark.parametrize("body", [in_a_process, in_an_executor, in_both])
def test_a_body_that_starts_processes_scores_as_it_does_alone(
    stage: Stage, body: Callable[[], float]
) -> None:
    batch = play_test(stage, eval_test(score_of(body), log=None), generations=4)
    assert batch.rewards == [1.0] * 32


class Rang(Exception): ...


def ring(*_: Any) -> None:
    raise Rang


def by_alarm() -> float:
    """Bounds itself, as verifiers of maths do; under pytest it scores 0.5."""
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        while True:  # not `signal.pause`, which misses an alarm that comes just before it
            time.sleep(0.01)
    except Rang:
        return 0.5


def by_alarm_and_process() -> float:
    return by_alarm() * in_a_process()


@pytest.mark.parametrize("body", [by_alarm, by_alarm_and_process])
def test_a_body_that_sets_an_alarm_scores_as_on_the_main_thread(
    stage: Stage, body: Callable[[], float], caplog: pytest.LogCaptureFixture
) -> None:
    test = eval_test(score_of(body), log=None)
    with caplog.at_level(logging.WARNING, "abut"):
        assert play_test(stage, test, generations=2).rewards == [body()] * 16
    # litellm's sessions of other tests are told of when the garbage collector gets to them.
    said = [record.message for record in caplog.records if record.name.startswith("abut")]
    assert [text.partition(", as for signal.alarm")[0] for text in said] == [
        f"{test.name} sets a signal handler"
    ]


def test_an_async_body_may_set_an_alarm(stage: Stage) -> None:
    @evaluation_test(
        input_messages=[[[Message(role="user", content=f"n {k}")] for k in range(4)]],
        completion_params=[{"model": "openai/m"}],
    )
    async def test_async(row: EvaluationRow) -> EvaluationRow:
        await asyncio.sleep(0)
        row.evaluation_result = EvaluateResult(score=by_alarm(), reason="")
        return row

    assert play_test(stage, eval_test(test_async, log=None)).rewards == [0.5] * 8


def test_a_body_that_outstays_its_alarm_is_killed_at_its_limit(stage: Stage) -> None:
    def stays() -> float:
        signal.signal(signal.SIGALRM, ring)
        signal.pause()
        return 1.0

    test = eval_test(score_of(stays), log=None, row_timeout_s=2)
    assert play_test(stage, test, generations=1).rewards == [None] * 8
    # Not `join`: the thread that started a child waits for it too, and only one of two waiting
    # threads gets the exit code.
    while multiprocessing.active_children():
        time.sleep(0.01)


class Gate:
    """While the first call forks, the second fails, as filelock 3.32 has it fail."""

    TEXT = "os.fork is unsafe while filelock is changing descriptor ownership"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.second, self.forked = threading.Event(), threading.Event()
        self.calls = 0

    def pass_it(self) -> float:
        with self.lock:
            self.calls += 1
            call = self.calls
        if call == 2:
            self.second.set()
            assert self.forked.wait(WAIT_S)
            raise RuntimeError(self.TEXT)
        assert self.second.wait(WAIT_S)
        process = FORK.Process(target=one)
        process.start()
        self.forked.set()
        process.join(WAIT_S)
        return 1.0


def test_a_score_that_the_first_clash_cost_is_not_kept(stage: Stage) -> None:
    """The body makes it 0.0, which is no news of the answer; so it is run again."""
    gate = Gate()
    batch = play_test(stage, eval_test(score_of(gate.pass_it), log=None), generations=1)
    assert batch.rewards == [1.0] * 8
    assert gate.calls >= 9


def test_a_body_that_stays_in_its_turn_is_given_up_and_the_others_are_scored(stage: Stage) -> None:
    let_go, first = threading.Event(), threading.Lock()

    def stays() -> float:
        is_first = first.acquire(blocking=False)
        FORK.Process(target=one).start()
        if is_first:
            let_go.wait()
        return 1.0

    test = eval_test(score_of(stays), log=None, row_timeout_s=5)
    rewards = play_test(stage, test, generations=1).rewards
    let_go.set()
    assert sorted(rewards, key=str) == [1.0] * 7 + [None]


class AtOnce:
    def __init__(self) -> None:
        self.now = self.most = 0
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


@pytest.mark.parametrize("most", [1, 2])
def test_as_many_bodies_run_at_once_as_the_test_says(stage: Stage, most: int) -> None:
    at_once, all_in = AtOnce(), threading.Event()

    def body() -> float:
        with at_once:
            if at_once.now == most:
                all_in.set()
            assert all_in.wait(WAIT_S)
            time.sleep(0.05)  # more than `most`, if more may, are in by then
            return 1.0

    test = eval_test(score_of(body, max_concurrent_evaluations=most), log=None)
    assert play_test(stage, test, generations=2).rewards == [1.0] * 16
    assert at_once.most == most


def test_an_async_body_runs_as_often_at_once_as_the_test_says(stage: Stage) -> None:
    at_once = AtOnce()

    @evaluation_test(
        input_messages=[[[Message(role="user", content=f"n {k}")] for k in range(8)]],
        completion_params=[{"model": "openai/m"}],
        max_concurrent_evaluations=1,
    )
    async def test_async(row: EvaluationRow) -> EvaluationRow:
        with at_once:
            for _ in range(5):
                await asyncio.sleep(0)
            row.evaluation_result = EvaluateResult(score=1.0, reason="")
            return row

    assert play_test(stage, eval_test(test_async, log=None)).rewards == [1.0] * 16
    assert at_once.most == 1
