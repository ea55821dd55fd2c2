"""Rollouts are the same on uvloop's event loops and on Python's own."""

import asyncio
import time
from typing import Any

import pytest

from abut.concurrency import loop as loops
from stage import BOTH, Stage, assert_done, check_exact, env

pytestmark = pytest.mark.usefixtures("no_thread_stays")


@pytest.fixture(params=["asyncio", "uvloop"])
def kind(request: Any, monkeypatch: Any) -> Any:
    """Where the loops come from."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setattr(loops, "uvloop", None)
    return request.param


def test_loops_are_uvloops_where_it_is_installed(kind: str) -> None:
    loop = loops.new_loop()
    try:
        assert type(loop).__module__.partition(".")[0] == kind
    finally:
        loop.close()


@BOTH
def test_rollouts_are_exact_on_both(stage: Stage, kind: str, twin: Any) -> None:
    played = stage.play(*[twin(env(texts=["go on", "x " * 6000]))] * 16, completion=10**6)
    for rollout in played.rollouts:
        assert_done(rollout)
        check_exact(rollout.columns, played.calls(rollout))


@BOTH
def test_a_step_that_hangs_costs_its_own_rollout_on_both(
    stage: Stage, kind: str, twin: Any
) -> None:
    class Slow(env()):  # type: ignore[misc]
        def step(self, action: str) -> Any:
            raise NotImplementedError

    async def never(self: Any, action: str) -> Any:
        await asyncio.sleep(60)

    def late(self: Any, action: str) -> Any:
        time.sleep(1)
        return self, "late"

    cls = twin(Slow)
    cls.step = never if twin.__name__ == "asynced" else late
    first, *rest = stage.play(cls, *[twin(env())] * 7, retries=0, step_timeout_s=0.3).rollouts
    assert "did not answer within step_timeout_s=0.3" in first.error
    for rollout in rest:
        assert_done(rollout)
