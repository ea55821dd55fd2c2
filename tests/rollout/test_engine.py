"""The engine: rollouts are independent, what fails costs its own rollout, and all is cleaned up."""

import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest

from abut.concurrency.loop import LoopTasks
from abut.errors import RolloutError, SamplerError
from abut.rollout.rollout import Rollout
from abut.samplers.sampler import Sample, SampleRequest
from tests.kit.stage.rollouts import (
    BOTH,
    LIMIT_S,
    Batched,
    Recording,
    Stage,
    Talk,
    assert_done,
    asynced,
    check_exact,
    env,
    eventually,
    row,
)

pytestmark = pytest.mark.usefixtures("no_thread_stays")


def test_a_batch_that_is_over_before_anybody_waits_for_it_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine this thread may come late: its loop was told so by the wrong thread."""
    submit = LoopTasks.submit

    def over_by_then(self: LoopTasks, call: Any) -> Any:
        future = submit(self, call)
        wait([future])
        return future

    monkeypatch.setattr(LoopTasks, "submit", over_by_then)
    played: list[Any] = []
    play = threading.Thread(target=lambda: played.append(stage.play(Talk, Talk)), daemon=True)
    play.start()
    play.join(60)
    assert played, "it hangs"
    for rollout in played[0].rollouts:
        assert_done(rollout)


# ---- independent rollouts


class Meeting(Talk):
    """The first one's step ends only when another rollout has taken its second."""

    made = 0
    second_step: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.first = type(self).made == 0
        type(self).made += 1

    def step(self, action: str) -> Any:
        if self.first and not self.actions:
            assert self.second_step.wait(30), "the other rollout waited for this one"
        elif not self.first and len(self.actions) == 1:
            self.second_step.set()
        return super().step(action)


class AsyncMeeting(Meeting):
    async def reset(self, seed: str) -> Any:  # type: ignore[override]
        return Talk.reset(self, seed)

    async def step(self, action: str) -> Any:  # type: ignore[override]
        while self.first and not self.second_step.is_set():
            await asyncio.sleep(0.001)
        return Meeting.step(self, action)


@pytest.mark.parametrize("base", [Meeting, AsyncMeeting])
@pytest.mark.parametrize("sampler", [Recording, Batched])
def test_a_step_of_one_rollout_does_not_wait_for_another(
    stage: Stage, base: Any, sampler: Any
) -> None:
    cls = env(base, made=0, second_step=threading.Event())
    for rollout in stage.play(cls, cls, sampler=sampler(stage.says()), retries=0).rollouts:
        assert_done(rollout)


def test_the_meeting_notices_envs_that_wait_for_each_other(stage: Stage) -> None:
    event = threading.Event()
    cls = env(Meeting, made=0, second_step=event)
    try:
        played = stage.play(
            cls, cls, max_rollouts=1, retries=0, step_timeout_s=0.1, max_failed_frac=1.0
        )
    finally:
        event.set()
    assert played.rollouts[0].failed


def test_a_sync_step_does_not_block_an_async_env(stage: Stage) -> None:
    met = threading.Event()
    waits = env(step=lambda self, action: (met.wait(30), Talk.step(self, action))[1])

    async def sets(self: Any, action: str) -> Any:
        met.set()
        return Talk.step(self, action)

    for rollout in stage.play(waits, env(asynced(Talk), step=sets)).rollouts:
        assert_done(rollout)
    assert met.is_set()


def test_envs_and_requests_at_once_are_bounded(stage: Stage) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    class Counted(Talk):
        def step(self, action: str) -> Any:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            try:
                return super().step(action)
            finally:
                with lock:
                    now[0] -= 1

    sampler = Batched(stage.says())
    stage.play(*[Counted] * 12, sampler=sampler, max_env_steps=2, max_requests=3)
    assert most[0] <= 2
    assert max(sampler.batches) <= 3


def test_rollouts_in_flight_are_bounded(stage: Stage) -> None:
    sampler = Recording(stage.says())
    stage.play(*[Talk] * 4, sampler=sampler, max_rollouts=1)
    ids = [request.rollout_id for request, _ in sampler.calls]
    assert ids == sorted(ids)


def test_a_model_in_process_samples_in_batches_on_the_calling_thread(stage: Stage) -> None:
    sampler = Batched(stage.says())
    played = stage.play(*[Talk] * 8, sampler=sampler)
    assert sampler.threads == {threading.current_thread().name}
    assert max(sampler.batches) == 8
    for rollout in played.rollouts:
        check_exact(rollout.columns, played.calls(rollout))


def test_one_request_at_a_time_where_max_requests_is_one(stage: Stage) -> None:
    now, most = [0], [0]

    class One(Recording):
        async def sample(self, request: SampleRequest) -> Sample:
            now[0] += 1
            most[0] = max(most[0], now[0])
            await asyncio.sleep(0)
            now[0] -= 1
            return await super().sample(request)

    stage.play(*[Talk] * 4, sampler=One(stage.says()), max_requests=1)
    assert most[0] == 1


def test_the_same_seed_gives_the_same_rows(stage: Stage) -> None:
    def rows(seed: int) -> list[list[int]]:
        def script(request: SampleRequest) -> Sequence[int]:
            rng = np.random.default_rng(request.seed)
            return rng.integers(0, 500, size=rng.integers(1, 5)).tolist()

        return [row(r) for r in stage.play(*[Talk] * 6, script=script, seed=seed).rollouts]

    first = rows(1)
    assert first == rows(1)
    assert first != rows(2)
    assert len({tuple(r) for r in first}) == 6


def test_each_request_has_a_seed_of_its_own(stage: Stage) -> None:
    played = stage.play(*[Talk] * 4)
    assert len({request.seed for request, _ in played.sampler.calls}) == 12


# ---- timeouts


def hangs(method: str, twin: Any) -> tuple[Any, threading.Event]:
    """An environment that hangs where it says, until the event is set."""
    release = threading.Event()

    def sync(self: Any, text: str) -> Any:
        release.wait(30)
        return getattr(Talk, method)(self, text)

    async def a_sync(self: Any, text: str) -> Any:
        while not release.is_set():
            await asyncio.sleep(0.005)
        return getattr(Talk, method)(self, text)

    return env(twin(Talk), **{method: a_sync if twin is asynced else sync}), release


def test_a_hanging_env_costs_its_own_rollout(stage: Stage) -> None:
    methods = ("reset", "reset", "step", "step")
    twins = (lambda cls: cls, asynced) * 2
    envs, releases = zip(*map(hangs, methods, twins), strict=True)
    limits = {"reset_timeout_s": LIMIT_S, "step_timeout_s": LIMIT_S, "max_failed_frac": 1.0}
    try:
        played = stage.play(*envs, Talk, asynced(Talk), retries=0, **limits)
    finally:
        for release in releases:
            release.set()
    assert [rollout.error for rollout in played.rollouts] == [
        *(f"EnvError: Talk.{name} did not answer within {name}_timeout_s=6" for name in methods),
        None,
        None,
    ]


def test_a_rollout_has_a_time_of_its_own(stage: Stage) -> None:
    cls, release = hangs("step", asynced)
    try:
        first, second = stage.play(cls, Talk, retries=0, rollout_timeout_s=LIMIT_S).rollouts
    finally:
        release.set()
    assert first.error == "EnvError: the rollout took longer than rollout_timeout_s=6"
    assert_done(second)


def test_no_clock_runs_while_a_model_in_this_process_samples(stage: Stage) -> None:
    class Slow(Batched):
        def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
            time.sleep(LIMIT_S + 0.5)
            return super().sample_batch(requests)

    limits = {"turn_timeout_s": LIMIT_S, "rollout_timeout_s": LIMIT_S, "retries": 0}
    once = env(turns=1)
    for rollout in stage.play(once, once, sampler=Slow(stage.says()), **limits).rollouts:
        assert_done(rollout)


def test_a_turn_has_a_time_of_its_own(stage: Stage) -> None:
    sampler = Recording(stage.says(), delay_s=lambda r: 60.0 * (r.rollout_id == "r0"))
    rollouts = stage.play(Talk, Talk, sampler=sampler, turn_timeout_s=LIMIT_S, retries=0).rollouts
    assert rollouts[0].error == "EnvError: turn 0 was not sampled within turn_timeout_s=6"
    assert_done(rollouts[1])


def test_a_timeout_of_the_sampler_itself_is_not_called_ours(stage: Stage) -> None:
    def script(request: SampleRequest) -> Sequence[int]:
        raise TimeoutError("read timed out")

    with pytest.raises(TimeoutError, match="read timed out"):
        stage.play(script=script)


# ---- failures


class Boom(Talk):
    """Fails at the second action of the first `failing` episodes; notes what it heard."""

    failing = 1
    error: Any = ValueError("boom")
    episodes: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.episodes.append(self)
        self.fails = len(self.episodes) <= self.failing

    def step(self, action: str) -> Any:
        result = super().step(action)
        if self.fails and len(self.actions) == 2:
            raise self.error
        return result


@BOTH
def test_a_retry_is_a_whole_episode_on_a_fresh_env(stage: Stage, twin: Any) -> None:
    cls = twin(env(Boom, episodes=[]))
    played = stage.play(cls, script=lambda r: [r.turn + 20, 505])
    assert_done(played.one)
    assert played.one.attempts == 2
    said = [stage.tokenizer.decode([id]) for id in (20, 21, 22)]
    assert [e.actions for e in cls.episodes] == [said[:2], said]
    check_exact(played.one.columns, played.sampler.calls[2:])
    assert played.sampler.calls[0][0].seed != played.sampler.calls[2][0].seed


@pytest.mark.parametrize(
    "error",
    [
        ValueError,
        SystemExit,
        KeyboardInterrupt,
        StopIteration,
        TimeoutError,
        asyncio.CancelledError,
        MemoryError,
    ],
)
@BOTH
def test_whatever_an_env_raises_costs_its_own_rollout(stage: Stage, error: Any, twin: Any) -> None:
    cls = twin(env(Boom, episodes=[], failing=9, error=error("boom")))
    first, second = stage.play(cls, twin(Talk), retries=0).rollouts
    text = f"{error.__name__}: boom"
    if error is StopIteration and twin is asynced:
        text = "RuntimeError: coroutine raised StopIteration"
    assert first.error == f"EnvError: Boom.step raised {text}"
    assert len(first.turns) == 2
    assert first.columns is None
    assert_done(second)


@BOTH
@pytest.mark.parametrize("attribute", ["alive", "reward"])
def test_an_attribute_that_raises_costs_its_own_rollout(
    stage: Stage, attribute: str, twin: Any
) -> None:
    def broken(self: Any) -> Any:
        raise OSError("gone")

    cls = twin(env(**{attribute: property(broken, lambda self, value: None)}))
    first, second = stage.play(cls, twin(Talk), retries=0).rollouts
    assert first.error == f"EnvError: Talk.{attribute} raised OSError: gone"
    assert_done(second)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_method_that_cannot_be_looked_at_costs_its_own_rollout(stage: Stage, method: str) -> None:
    def broken(self: Any) -> Any:
        raise OSError("gone")

    first, second = stage.play(env(**{method: property(broken)}), Talk, retries=0).rollouts
    assert first.error == f"EnvError: Talk.{method} raised OSError: gone"
    assert_done(second)


def test_a_close_that_cannot_be_looked_at_concerns_no_rollout(stage: Stage) -> None:
    def broken(self: Any) -> Any:
        raise OSError("gone")

    assert_done(stage.play(env(close=property(broken))).one)


def test_an_env_that_cancels_its_own_task_costs_its_own_rollout(stage: Stage) -> None:
    async def step(self: Any, action: str) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    first, second = stage.play(env(asynced(Talk), step=step), asynced(Talk), retries=0).rollouts
    assert first.error == "EnvError: Talk.step raised CancelledError: "
    assert_done(second)


@BOTH
def test_what_ends_a_process_in_close_ends_nothing(stage: Stage, twin: Any) -> None:
    async def dies(self: Any) -> None:
        raise SystemExit(3)

    cls = env(twin(Talk), close=dies if twin is asynced else lambda self: sys.exit(3))
    for rollout in stage.play(*[cls] * 8, max_rollouts=2).rollouts:
        assert_done(rollout)


def test_a_rollout_that_failed_is_unscored_zero_or_an_error(stage: Stage) -> None:
    def play(**config: Any) -> list[Rollout]:
        cls = env(Boom, episodes=[], failing=9)
        return stage.play(cls, Talk, retries=2, **config).rollouts

    unscored, fine = play()
    assert (unscored.reward, unscored.attempts, fine.reward) == (None, 3, 1.0)
    assert play(on_failure="zero")[0].reward == 0.0
    with pytest.raises(RolloutError) as raised:
        play(on_failure="raise")
    assert str(raised.value) == (
        "rollout r0 failed after 3 attempts: EnvError: Boom.step raised ValueError: boom"
    )


def test_too_many_failures_raise_with_a_histogram(stage: Stage) -> None:
    boom = env(Boom, episodes=[], failing=9)
    gone = env(Boom, episodes=[], failing=9, error=OSError("gone\nwith details"))
    envs = [boom, gone, boom, Talk]
    with pytest.raises(RolloutError) as raised:
        stage.play(*envs, retries=0)
    assert str(raised.value) == (
        "3 of 4 rollouts failed, more than max_failed_frac=0.5 allows:\n"
        "  2 x EnvError: Boom.step raised ValueError: boom\n"
        "  1 x EnvError: Boom.step raised OSError: gone\n"
        "hint: fix what failed, or raise max_failed_frac"
    )
    boom.episodes.clear()
    assert len(stage.play(*envs, retries=0, max_failed_frac=0.75).rollouts) == 4


def test_rollouts_that_ended_are_handed_over_even_where_the_batch_raises(stage: Stage) -> None:
    for config in {}, {"on_failure": "raise"}:
        seen: list[Rollout] = []
        engine = stage.engine(Recording(stage.says()), retries=0, **config)
        envs = [env(Boom, episodes=[], failing=9)] * 3
        with pytest.raises(RolloutError):
            engine.run(stage.tasks(envs), on_rollout=seen.append)
        assert [r.index for r in seen] == sorted(r.index for r in seen)
        assert any(r.error == "EnvError: Boom.step raised ValueError: boom" for r in seen)


class Wrong(Recording):
    """A sampler whose answer is what `change` makes of the right one."""

    change: Any = None

    async def sample(self, request: SampleRequest) -> Any:
        return self.change(await super().sample(request))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda s: Sample(s.ids, s.logprobs[1:], "stop"),
            "rollout r0: turn 0 has 3 sampled ids but 2 logprobs\nhint: pass one logprob per "
            "sampled id, the stop token included",
        ),
        (
            lambda s: Sample(s.ids, s.logprobs * np.float32("nan"), "stop"),
            "rollout r0: turn 0: sampled token 0 (id 88) has logprob NaN, which is not finite\n"
            "hint: ask the engine for the logprob of each sampled token, after temperature and "
            "filters",
        ),
        (
            lambda s: Sample(s.ids, None, "stop"),
            "rollout r0: logprobs must be a one-dimensional array or list of floats, got NoneType",
        ),
        (
            lambda s: list(s.ids),
            "rollout r0, turn 0: the sampler returned list, not a Sample",
        ),
        (
            lambda s: Sample(np.arange(9), np.zeros(9, np.float32), "stop"),
            "rollout r0, turn 0: the sampler returned 9 tokens, but the request allows 5",
        ),
    ],
    ids=["short logprobs", "NaN", "no logprobs", "no Sample", "too long"],
)
def test_a_wrong_sample_stops_the_batch(stage: Stage, change: Any, text: str) -> None:
    closed: list[Any] = []
    cls = env(close=lambda self: closed.append(self))
    sampler = type("Wrong", (Wrong,), {"change": staticmethod(change)})(stage.says())
    with pytest.raises(SamplerError) as raised:
        stage.play(cls, cls, sampler=sampler, max_turn_tokens=5, max_rollouts=1)
    assert str(raised.value) == text
    assert closed


class Unequal(Batched):
    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        return super().sample_batch(requests)[1:]


def test_a_batch_of_the_wrong_length_stops_the_batch(stage: Stage) -> None:
    with pytest.raises(SamplerError) as raised:
        stage.play(Talk, Talk, sampler=Unequal(stage.says()))
    assert str(raised.value) == "sample_batch returned 1 samples for 2 requests"


def test_an_id_outside_the_vocabulary_costs_its_own_rollout(stage: Stage) -> None:
    first, second = stage.play(
        Talk, Talk, script=lambda r: [10**6 if r.rollout_id == "r0" else 11], retries=0
    ).rollouts
    assert (first.error or "").startswith("TokenizerError: ")
    assert_done(second)


def test_a_reply_that_has_no_tokens_costs_its_own_rollout(stage: Stage) -> None:
    first, second = stage.play(env(texts=["\ud800"]), Talk, retries=0).rollouts
    assert first.failed
    assert_done(second)


class Interrupted(Batched):
    """Ctrl-C while the model of the first batch samples."""

    interrupts = 1

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return super().sample_batch(requests)


def test_after_an_interrupt_the_engine_plays_again(stage: Stage) -> None:
    closed: list[Any] = []
    sampler = Interrupted(stage.says())
    engine = stage.engine(sampler)
    tasks = stage.tasks([env(close=lambda self: closed.append(self))] * 2)
    with pytest.raises(KeyboardInterrupt):
        engine.run(tasks)
    assert len(closed) == 2
    for rollout in engine.run(tasks):
        assert_done(rollout)


def test_no_tasks_give_no_rollouts(stage: Stage) -> None:
    assert stage.engine(Recording(stage.says())).run([]) == []


# ---- closing


def closing(base: Any, closed: list[Any], twin: Any) -> Any:
    async def close(self: Any) -> None:
        await asyncio.sleep(0)
        closed.append(self)

    return env(base, close=close if twin is asynced else lambda self: closed.append(self))


@BOTH
def test_each_env_is_closed_once_when_run_returns(stage: Stage, twin: Any) -> None:
    closed: list[Any] = []
    cls = closing(twin(Talk), closed, twin)
    stage.play(*[cls] * 5)
    assert len({id(e) for e in closed}) == len(closed) == 5


@BOTH
def test_the_env_of_a_failed_attempt_is_closed_too(stage: Stage, twin: Any) -> None:
    closed: list[Any] = []
    cls = closing(twin(env(Boom, episodes=[])), closed, twin)
    stage.play(cls)
    assert len(closed) == len(cls.episodes) == 2


@BOTH
@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_env_that_hangs_is_closed(stage: Stage, method: str, twin: Any) -> None:
    closed: list[Any] = []
    cls, release = hangs(method, twin)
    try:
        timeout = {f"{method}_timeout_s": 0.05}
        stage.play(closing(cls, closed, twin), retries=0, max_failed_frac=1.0, **timeout)
    finally:
        release.set()
    assert eventually(lambda: len(closed) == 1)  # a sync one when its call returns


@BOTH
def test_an_env_that_was_made_too_late_is_closed(stage: Stage, twin: Any) -> None:
    closed: list[Any] = []
    release = threading.Event()
    cls = closing(twin(Talk), closed, twin)

    def late() -> Any:
        release.wait(30)
        return cls()

    played = stage.play(late, retries=0, max_failed_frac=1.0, reset_timeout_s=0.05)
    assert played.one.error == "EnvError: late.reset did not answer within reset_timeout_s=0.05"
    assert not closed
    release.set()
    assert eventually(lambda: len(closed) == 1)


@BOTH
def test_envs_are_closed_when_the_sampler_fails(stage: Stage, twin: Any) -> None:
    closed: list[Any] = []
    cls = closing(twin(Talk), closed, twin)

    def script(request: SampleRequest) -> Sequence[int]:
        raise SamplerError("the server is down")

    with pytest.raises(SamplerError, match="the server is down"):
        stage.play(cls, cls, script=script)
    assert closed


def test_what_close_raises_concerns_no_rollout(stage: Stage) -> None:
    def close(self: Any) -> None:
        raise RuntimeError("cannot")

    assert_done(stage.play(env(close=close)).one)


def test_a_closed_sampler_context_is_left(stage: Stage) -> None:
    entered: list[str] = []

    class Held(Batched):
        def __enter__(self) -> Any:
            entered.append("enter")
            return self

        def __exit__(self, *exc: object) -> None:
            entered.append("exit")

    stage.play(sampler=Held(stage.says()))
    assert entered == ["enter", "exit"]


def test_an_engine_has_all_its_attributes_from_the_start_and_keeps_nothing_of_a_batch(
    stage: Stage,
) -> None:
    engine = stage.engine(Recording(stage.says()))
    before = {**vars(engine), **vars(engine._parts)}
    for rollout in engine.run(stage.tasks([Talk, asynced(Talk)])):
        assert_done(rollout)
    assert {**vars(engine), **vars(engine._parts)} == before


def test_nothing_bounds_a_rollout_is_an_error(stage: Stage) -> None:
    engine = stage.engine(Recording(stage.says()), completion=None)
    with pytest.raises(ValueError, match="a rollout has no token limit") as raised:
        engine.run(stage.tasks([Talk]))
    assert str(raised.value) == (
        "a rollout has no token limit, neither from RolloutConfig nor from the sampler\n"
        "hint: set RolloutConfig(max_completion_tokens=2048)"
    )
