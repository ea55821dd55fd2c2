"""What a failure leaves behind: its traceback, in the record and in the log, and its kind."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from abut.errors import EnvError, RolloutError, trace_of
from abut.records.read import from_record
from abut.records.record import to_record
from abut.records.show import render
from abut.rollout.failures import kind_of_error
from tests.kit.stage.rollouts import BOTH, Recording, Stage, Talk, assert_done, asynced, env

pytestmark = pytest.mark.usefixtures("no_thread_stays")
HERE = str(Path(__file__))


def raises_in_step(self: Any, action: str) -> Any:
    raise ValueError("boom")


def raises_in_reward(self: Any) -> float:
    raise KeyError("score")


def returns_no_pair(self: Any, action: str) -> Any:
    return "text"


# What fails, and what its traceback names.
FAILURES = {
    "a step": ({"step": raises_in_step}, ["in raises_in_step", "ValueError: boom"]),
    "a property": ({"reward": property(raises_in_reward)}, ["in raises_in_reward", "'score'"]),
    "a reply": ({"step": returns_no_pair}, ["in returns_no_pair"]),
}


@pytest.mark.parametrize(("bad", "named"), FAILURES.values(), ids=FAILURES)
def test_a_failure_leaves_the_environments_file_and_line(
    stage: Stage, bad: dict[str, Any], named: list[str]
) -> None:
    class Plain(Talk):
        reward = 0.0

        def __init__(self) -> None:
            self.alive, self.actions = True, []

        def step(self, action: str) -> Any:
            return self, "go on"

    rollout = stage.play(env(Plain, **bad), Talk, retries=1).rollouts[0]
    assert len(rollout.attempt_errors) == len(rollout.attempt_tracebacks) == 2
    for trace in rollout.attempt_tracebacks:
        assert f'File "{HERE}", line ' in trace
        for name in named:
            assert name in trace
    record = from_record(to_record(rollout))
    assert record["attempt_tracebacks"] == rollout.attempt_tracebacks
    shown = "\n".join(render(record | {"step": 0}, stage.tokenizer, color=False))
    assert rollout.attempt_tracebacks[-1].replace("\n", "\n  ") in shown


def test_an_attempt_that_was_played_again_keeps_its_traceback(stage: Stage) -> None:
    tried: list[int] = []

    def step(self: Any, action: str) -> Any:
        if not tried:
            tried.append(1)
            raise ValueError("once")
        return Talk.step(self, action)

    rollout = stage.play(env(step=step)).one
    assert_done(rollout)
    (trace,) = rollout.attempt_tracebacks
    assert "ValueError: once" in trace


@BOTH
def test_a_step_that_hangs_leaves_where_it_hangs(stage: Stage, twin: Any) -> None:
    release = threading.Event()

    def waits_for_ever() -> None:
        release.wait(60)

    def step(self: Any, action: str) -> Any:
        waits_for_ever()
        return Talk.step(self, action)

    async def step_async(self: Any, action: str) -> Any:
        await asyncio.sleep(60)

    cls = env(twin(Talk), step=step_async if twin is asynced else step)
    try:
        played = stage.play(cls, retries=0, step_timeout_s=0.2, max_failed_frac=1.0)
    finally:
        release.set()
    (trace,) = played.one.attempt_tracebacks
    assert f'File "{HERE}"' in trace
    assert ("in waits_for_ever" in trace) is (twin is not asynced)
    assert "live_env.py" not in trace
    assert "guarded.py" not in trace


def test_the_first_failure_of_each_kind_is_logged_in_full(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Over all batches of an engine; the others are in the debug log."""
    made = iter(range(100))

    def step(self: Any, action: str) -> Any:
        raise ValueError(f"session {next(made)} is gone")

    engine = stage.engine(Recording(stage.says()), retries=0, max_failed_frac=1.0)
    caplog.set_level(logging.DEBUG, logger="abut")
    for _ in range(2):
        engine.run(stage.tasks([env(step=step)] * 3 + [env(step=raises_in_step)]))
    logs = [r for r in caplog.records if "attempt 1" in r.getMessage()]
    warned = [r.getMessage() for r in logs if r.levelno == logging.WARNING]
    assert len(logs) == 8
    assert len(warned) == 2
    for record in logs:
        assert f'File "{HERE}", line ' in record.getMessage()
    assert sum("ValueError: boom" in message for message in warned) == 1
    summaries = [r.getMessage() for r in caplog.records if "4 of 4" in r.getMessage()]
    assert summaries[0].splitlines()[1:] == [
        "  3 x EnvError: Talk.step raised ValueError: session … is gone",
        "  1 x EnvError: Talk.step raised ValueError: boom",
    ]


def test_the_error_of_a_batch_has_the_environments_as_its_cause(stage: Stage) -> None:
    with pytest.raises(RolloutError) as raised:
        stage.play(env(step=raises_in_step), retries=0, on_failure="raise")
    assert isinstance(raised.value.__cause__, EnvError)
    assert "in raises_in_step" in raised.value.__cause__.trace


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no room 12 in 3.5 s", "no room 7 in 0.25 s"),
        ("<Conn at 0x7f3b>", "<Conn at 0x7f4c11>"),
        ("of 3f2b8c1e-0d4a-4c9e-9b1a-2f6d7e8a9b0c", f"of {'0' * 8}{'-0000' * 3}-{'1' * 12}"),
        ("chatcmpl a8f3kq9z12 is gone", "chatcmpl zz81kd0q77 is gone"),
        ("took -1", "took 1e-05"),
        ("a\nb", "a\nc"),
    ],
)
def test_failures_that_differ_only_in_numbers_addresses_or_ids_are_one_kind(
    one: str, other: str
) -> None:
    assert kind_of_error(one) == kind_of_error(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("KeyError: 'a'", "KeyError: 'b'"), ("A.step raised", "A.reset raised")],
)
def test_other_failures_are_not(one: str, other: str) -> None:
    assert kind_of_error(one) != kind_of_error(other)


def test_a_traceback_is_bounded_and_always_a_text() -> None:
    class Unsayable(Exception):
        def __str__(self) -> str:
            raise SystemExit

    with pytest.raises(Unsayable) as raised:
        raise Unsayable from ValueError("x" * 100_000)
    assert len(trace_of(raised.value)) < 21_000
    assert "Unsayable" in trace_of(raised.value)
    assert "whose text raises SystemExit" in trace_of(raised.value, own=True)
