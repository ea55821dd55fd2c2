"""Rollouts are the same on uvloop's event loops and on Python's own."""

import asyncio
import threading
from typing import Any

import pytest

from abut.concurrency import loop as loops
from tests.kit.stage.rollouts import (
    BOTH,
    LIMIT_S,
    Stage,
    Talk,
    assert_done,
    asynced,
    check_exact,
    env,
)

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


def test_a_step_that_hangs_costs_its_own_rollout_on_both(stage: Stage, kind: str) -> None:
    over = threading.Event()

    async def never(self: Any, action: str) -> Any:
        await asyncio.sleep(600)

    def late(self: Any, action: str) -> Any:
        over.wait(600)
        return self, "late"

    hanging = [env(step=late), env(asynced(Talk), step=never)]
    try:
        first, second, *rest = stage.play(
            *hanging, *[Talk] * 4, *[asynced(Talk)] * 4, retries=0, step_timeout_s=LIMIT_S
        ).rollouts
    finally:
        over.set()
    assert "did not answer within step_timeout_s=6" in first.error
    assert "did not answer within step_timeout_s=6" in second.error
    for rollout in rest:
        assert_done(rollout)
