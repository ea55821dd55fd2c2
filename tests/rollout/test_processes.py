"""Environments that start processes play beside each other, and none of their calls hangs."""

import multiprocessing
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.kit.stage.rollouts import Stage, Talk, env

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")

WAIT_S = 60.0
FORK = multiprocessing.get_context("fork")


def pass_by() -> None: ...


class Forking(Talk):
    """Forks a child, and starts a program beside it, in each step."""

    inside: Any
    overlaps: list[int]

    def step(self, action: str) -> Any:
        process = FORK.Process(target=pass_by)
        process.start()
        if not self.inside.acquire(blocking=False):
            self.overlaps.append(1)
        else:
            subprocess.run([sys.executable, "-S", "-c", ""], check=True)
            self.inside.release()
        process.join(WAIT_S)
        assert process.exitcode == 0
        return super().step(action)


def test_environments_that_fork_take_turns(stage: Stage) -> None:
    forking = env(Forking, inside=threading.Lock(), overlaps=[])
    played = stage.play(*[forking] * 16)
    assert [rollout.error for rollout in played.rollouts] == [None] * 16
    assert not forking.overlaps


class Staying(Talk):
    """One of them forks, and does not come back."""

    first: Any
    let_go: threading.Event

    def step(self, action: str) -> Any:
        is_first = self.first.acquire(blocking=False)
        FORK.Process(target=pass_by).start()
        if is_first:
            self.let_go.wait()
        return super().step(action)


def test_one_that_stays_in_its_turn_fails_alone(stage: Stage) -> None:
    staying = env(Staying, first=threading.Lock(), let_go=threading.Event())
    played = stage.play(*[staying] * 4, retries=0, step_timeout_s=6)
    staying.let_go.set()
    errors = [rollout.error for rollout in played.rollouts if rollout.failed]
    assert errors == ["EnvError: Staying.step did not answer within step_timeout_s=6"]


class Clashing(Talk):
    """While the first forks, the second fails, as filelock 3.32 has it fail."""

    calls: Any
    second: threading.Event
    forked: threading.Event

    def step(self, action: str) -> Any:
        call = next(self.calls)
        if call == 1:
            self.second.set()
            assert self.forked.wait(WAIT_S)
            raise RuntimeError("os.fork is unsafe while filelock is changing descriptor ownership")
        assert self.second.wait(WAIT_S)
        FORK.Process(target=pass_by).start()
        self.forked.set()
        return super().step(action)


def test_an_episode_that_the_first_clash_cost_is_played_again(stage: Stage) -> None:
    clashing = env(
        Clashing, calls=iter(range(1000)), second=threading.Event(), forked=threading.Event()
    )
    played = stage.play(clashing, clashing, retries=0)
    assert [rollout.error for rollout in played.rollouts] == [None, None]
    assert sorted(rollout.attempts for rollout in played.rollouts) == [1, 2]
