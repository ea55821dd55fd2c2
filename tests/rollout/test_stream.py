"""The continuous mode: groups are played as slots get free, each handed over once, whole."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from abut.envs.task import RolloutTask
from abut.errors import EnvError, RolloutError, SamplerError
from abut.rollout.engine import Engine
from abut.rollout.rollout import Rollout
from abut.rollout.stream import Stream
from abut.samplers.sampler import VERSIONS
from tests.kit.stage.rollouts import (
    Batched,
    Recording,
    Stage,
    Talk,
    asynced,
    check_exact,
    env,
    eventually,
    own_threads,
)

pytestmark = pytest.mark.usefixtures("no_thread_stays")

WAIT_S = 60


class Streaming:
    """Plays a stream on a thread of its own, and keeps the groups that were delivered."""

    def __init__(
        self,
        engine: Engine,
        make_env: Any = Talk,
        *,
        size: int = 2,
        groups: int | None = None,
        deliver: Any = None,
        at_once: int = 4,
        judged: int = 1000,
        begin: Any = None,
        **stream: Any,
    ) -> None:
        self.played: list[list[tuple[RolloutTask, Rollout]]] = []
        self.made = 0
        self.error: BaseException | None = None
        self._of_group = make_env if isinstance(make_env, Iterator) else itertools.repeat(make_env)
        self._size = size
        self._enough = threading.Condition()
        self._deliver = deliver
        tasks = itertools.islice(self._groups(), groups)
        self.stream = Stream(
            tasks, self._take, at_once=at_once, judged=judged, begin=begin, **stream
        )
        self._engine = engine
        self._thread = threading.Thread(target=self._run, name="streaming", daemon=True)
        self._thread.start()

    def _groups(self) -> Iterator[Sequence[RolloutTask]]:
        for group, make_env in enumerate(self._of_group):
            self.made += 1
            yield [
                RolloutTask(k, f"r{group}-{k}", make_env, [], "seed", group, group=group)
                for k in range(self._size)
            ]

    async def _take(self, batch: Any, played: Any) -> None:
        if self._deliver is not None:
            await self._deliver(batch, played)
        with self._enough:
            self.played.append(list(played))
            self._enough.notify_all()

    def _run(self) -> None:
        try:
            self._engine.stream(self.stream)
        except BaseException as error:
            self.error = error
        with self._enough:
            self._enough.notify_all()

    def wait_for(self, groups: int) -> None:
        with self._enough:
            enough = self._enough.wait_for(
                lambda: len(self.played) >= groups or self.error is not None, WAIT_S
            )
        if self.error is not None:
            raise self.error
        assert enough

    def wait_for_group(self, group: int) -> list[tuple[RolloutTask, Rollout]]:
        """The rollouts of this group: one that began later may end before it."""
        for enough in itertools.count(1):
            self.wait_for(enough)
            for played in self.played:
                if played[0][0].group == group:
                    return played
        raise AssertionError

    def stop(self) -> list[list[tuple[RolloutTask, Rollout]]]:
        self.stream.stop()
        return self.end()

    def end(self) -> list[list[tuple[RolloutTask, Rollout]]]:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.played


@pytest.fixture
def stream(stage: Stage) -> Iterator[Callable[..., Streaming]]:
    begun: list[Streaming] = []

    def begin(make_env: Any = Talk, *, sampler: Any = None, config: Any = None, **of: Any) -> Any:
        engine = stage.engine(sampler or Recording(stage.says()), **(config or {}))
        begun.append(Streaming(engine, make_env, **of))
        return begun[-1]

    yield begin
    for streaming in begun:
        streaming.stream.stop()
        streaming._thread.join(WAIT_S)


def test_groups_are_delivered_whole_and_in_the_order_of_their_tasks(stream: Any) -> None:
    streaming = stream(size=3)
    streaming.wait_for(5)
    played = streaming.stop()
    assert len({tasks[0][0].group for tasks in played}) == len(played) >= 5
    for group in played:
        assert [task.index for task, _ in group] == [0, 1, 2]
        assert [rollout.rollout_id for _, rollout in group] == [t.rollout_id for t, _ in group]
        assert all(rollout.error is None for _, rollout in group)


@pytest.mark.parametrize("kind", [Recording, Batched])
@pytest.mark.parametrize("twin", [lambda cls: cls, asynced], ids=["sync", "async"])
def test_every_row_is_exact(stage: Stage, stream: Any, kind: Any, twin: Any) -> None:
    sampler = kind(stage.says())
    streaming = stream(twin(Talk), sampler=sampler)
    streaming.wait_for(4)
    for _, rollout in itertools.chain(*streaming.stop()):
        calls = [call for call in sampler.calls if call[0].rollout_id == rollout.rollout_id]
        check_exact(rollout.columns, calls)


def test_a_slow_rollout_holds_up_its_own_group_alone(stream: Any) -> None:
    begun, hold = threading.Event(), threading.Event()

    class Slow(Talk):
        def step(self, action: str) -> Any:
            begun.set()
            assert hold.wait(WAIT_S)
            return super().step(action)

    streaming = stream(iter([Slow, *[Talk] * 20]), size=1, at_once=2)
    assert begun.wait(WAIT_S)
    streaming.wait_for(20)
    assert all(group[0][0].group for group in streaming.played), "the slow one still plays"
    hold.set()
    streaming.end()
    assert streaming.played[-1][0][0].group == 0


def test_no_more_play_at_once_than_there_are_slots(stage: Stage, stream: Any) -> None:
    playing, most, lock = 0, 0, threading.Lock()

    class Counted(Talk):
        def reset(self, seed: str) -> Any:
            nonlocal playing, most
            with lock:
                playing += 1
                most = max(most, playing)
            return super().reset(seed)

        def close(self) -> None:
            nonlocal playing
            with lock:
                playing -= 1

    streaming = stream(Counted, at_once=3)
    streaming.wait_for(10)
    streaming.stop()
    # What ended is closed behind it, while its slot has the next one.
    assert most <= 6


def test_what_nobody_takes_is_not_played_for_ever(stage: Stage, stream: Any) -> None:
    waits = threading.Event()

    async def deliver(batch: Any, played: Any) -> None:
        waits.set()
        await asyncio.Event().wait()

    sampler = Recording(stage.says())
    streaming = stream(sampler=sampler, deliver=deliver, at_once=4)
    assert waits.wait(WAIT_S)
    attempts = streaming._engine._unended.attempts
    assert eventually(lambda: streaming.stream._undelivered >= 4 and not attempts._playing)
    played = {request.rollout_id for request, _ in sampler.calls}
    # A group that waits, and with four slots four more at the most: the last of each was playing.
    assert 4 <= len(played) <= 10
    assert streaming.stop() == []


def test_tasks_that_end_end_the_stream(stream: Any) -> None:
    assert len(stream(groups=7).end()) == 7


def test_what_begins_comes_before_all_that_is_delivered(stream: Any) -> None:
    order: list[str] = []

    async def begin() -> None:
        order.append("begin")

    async def deliver(batch: Any, played: Any) -> None:
        order.append("group")

    stream(groups=2, begin=begin, deliver=deliver).end()
    assert order == ["begin", "group", "group"]


def test_a_stream_that_is_stopped_before_it_begins_plays_nothing(stage: Stage) -> None:
    sampler = Recording(stage.says())
    stopped = Stream(iter([stage.tasks([Talk])]), pytest.fail, at_once=1, judged=1)  # type: ignore[arg-type]
    stopped.stop()
    stage.engine(sampler).stream(stopped)
    assert sampler.calls == []


@pytest.mark.parametrize("twin", [lambda cls: cls, asynced], ids=["sync", "async"])
def test_stopping_closes_what_plays(stream: Any, twin: Any) -> None:
    made: list[Any] = []
    closed: list[Any] = []
    hold = threading.Event()

    class Env(Talk):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    class Blocking(Env):
        def step(self, action: str) -> Any:
            assert hold.wait(WAIT_S)
            return super().step(action)

    streaming = stream(Blocking if twin(Talk) is Talk else twin(Env), at_once=3)
    assert eventually(lambda: len(made) >= 3)
    streaming.stream.stop()
    hold.set()
    streaming.end()
    assert eventually(lambda: len(closed) == len(made))
    assert eventually(lambda: not own_threads())


def test_a_sampler_that_fails_ends_the_stream(stream: Any) -> None:
    class Failing(Recording):
        async def sample(self, request: Any) -> Any:
            raise SamplerError("gone")

    with pytest.raises(SamplerError, match="gone"):
        stream(sampler=Failing(lambda request: [5])).wait_for(1)


def test_what_cannot_be_delivered_ends_the_stream(stream: Any) -> None:
    async def deliver(batch: Any, played: Any) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        stream(deliver=deliver).wait_for(1)


def test_tasks_that_cannot_be_made_end_the_stream(stream: Any) -> None:
    def broken() -> Iterator[Any]:
        yield Talk
        raise ValueError("no such row")

    with pytest.raises(ValueError, match="no such row"):
        stream(broken()).end()


class Broken(Talk):
    def step(self, action: str) -> Any:
        raise ValueError("boom")


def test_too_many_that_fail_end_the_stream(stream: Any) -> None:
    with pytest.raises(
        RolloutError, match=r"8 of 8 rollouts failed, more than max_failed_frac=0\.5"
    ):
        stream(Broken, judged=8).wait_for(1000)


def test_a_few_that_fail_are_data(stream: Any) -> None:
    streaming = stream(iter([Broken, Talk, Talk] * 4), size=2, judged=6)
    played = streaming.end()
    assert len(played) == 12
    assert sum(rollout.failed for _, rollout in itertools.chain(*played)) == 8


def test_one_that_fails_ends_the_stream_where_none_may(stream: Any) -> None:
    with pytest.raises(RolloutError, match=r"rollout r\d-[01] failed after 2 attempts"):
        stream(Broken, config={"on_failure": "raise"}).wait_for(1)


class Holding(Recording):
    """Holds each sample of a rollout's second turn until it is told."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.go = threading.Event()
        self.held: list[str] = []

    async def sample(self, request: Any) -> Any:
        if request.turn == 1 and not self.go.is_set():
            self.held.append(request.rollout_id)
            while not self.go.is_set():
                await asyncio.sleep(0.001)
        return await super().sample(request)


def test_what_is_too_old_is_ended_and_not_tried_again(stage: Stage, stream: Any) -> None:
    sampler = Holding(stage.says())
    streaming = stream(sampler=sampler, at_once=2, version=5, max_staleness=1)
    assert eventually(lambda: len(sampler.held) == 2)
    streaming.stream.update_version(6)
    streaming.stream.update_version(7)
    streaming.wait_for(1)
    sampler.go.set()
    streaming.wait_for(3)
    (first, *others) = streaming.stop()
    for _, rollout in first:
        assert (rollout.stop_reason, rollout.error, rollout.reward) == ("stale", None, None)
        assert (rollout.attempts, rollout.attempt_errors) == (1, [])
        assert len(rollout.turns) == 1, "what there is of it stays for the record"
    for _, rollout in itertools.chain(*others):
        assert rollout.stop_reason == "env_done"
        assert {*rollout.streams[VERSIONS]} == {7, -1}


def test_one_version_less_is_not_too_old(stage: Stage, stream: Any) -> None:
    """The negative control of the test above."""
    sampler = Holding(stage.says())
    streaming = stream(sampler=sampler, at_once=2, version=5, max_staleness=1)
    assert eventually(lambda: len(sampler.held) == 2)
    streaming.stream.update_version(6)
    sampler.go.set()
    for _, rollout in streaming.wait_for_group(0):
        assert rollout.stop_reason == "env_done"


def test_a_token_bears_the_oldest_weights_that_can_have_sampled_it(
    stage: Stage, stream: Any
) -> None:
    sampler = Holding(stage.says())
    streaming = stream(sampler=sampler, at_once=2, version=1, max_staleness=9)
    assert eventually(lambda: len(sampler.held) == 2)
    streaming.stream.update_version(2)
    sampler.go.set()
    for _, rollout in streaming.wait_for_group(0):
        turns = [({*turn.streams[VERSIONS]}, turn.newest_version) for turn in rollout.turns]
        assert turns == [({1}, 1), ({1}, 2), ({2}, 2)]
        sampled = rollout.columns.env_mask == 1
        assert {*rollout.streams[VERSIONS][sampled]} == {1, 2}
        assert {*rollout.streams[VERSIONS][~sampled]} == {-1}


def test_versions_of_the_sampler_win(stage: Stage, stream: Any) -> None:
    class Knows(Recording):
        async def sample(self, request: Any) -> Any:
            sample = await super().sample(request)
            return replace(sample, streams={VERSIONS: np.arange(len(sample.ids)), "other": [1]})

    for _, rollout in stream(sampler=Knows(stage.says()), version=7).wait_for_group(0):
        assert rollout.streams.keys() == {VERSIONS}, "nobody asked for the other"
        for turn in rollout.turns:
            assert turn.streams[VERSIONS].tolist() == [*range(turn.end - turn.start)]
            assert turn.newest_version == 7


def test_a_rollout_keeps_its_slot_until_it_is_finished(stage: Stage, stream: Any) -> None:
    held: list[tuple[str, asyncio.Future[None]]] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def finish(task: RolloutTask, rollout: Rollout) -> str | None:
        assert loops == [asyncio.get_running_loop()], "it was entered there, and before"
        assert (task.rollout_id, rollout.stop_reason) == (rollout.rollout_id, "env_done")
        held.append((task.rollout_id, loops[0].create_future()))
        await held[-1][1]
        rollout.teacher = "held"
        return None

    @asynccontextmanager
    async def finishing() -> AsyncIterator[Any]:
        loops.append(asyncio.get_running_loop())
        yield finish
        loops.clear()

    sampler = Recording(stage.says())
    streaming = stream(sampler=sampler, at_once=2, finishing=finishing)
    assert eventually(lambda: len(held) == 2)
    assert {request.rollout_id for request, _ in sampler.calls} == {"r0-0", "r0-1"}
    assert not streaming.played
    for _, future in held[:2]:
        loops[0].call_soon_threadsafe(future.set_result, None)
    assert {rollout.teacher for _, rollout in streaming.wait_for_group(0)} == {"held"}
    assert eventually(lambda: len(held) == 4)
    streaming.stop()
    assert not loops, "it was left"


def test_what_finishing_raises_ends_the_batch_and_the_rollout_is_recorded(stage: Stage) -> None:
    async def finish(task: RolloutTask, rollout: Rollout) -> str | None:
        raise LookupError(f"no teacher for {task.rollout_id}")

    recorded: list[Rollout] = []
    engine = stage.engine(Recording(stage.says()))
    with pytest.raises(LookupError, match="no teacher for r0"):
        engine.play(
            stage.tasks([Talk]), on_rollout=recorded.append, finishing=lambda: nullcontext(finish)
        )
    assert [rollout.reward for rollout in recorded] == [1.0]


@pytest.mark.parametrize(("most", "fails"), [(0.5, False), (0.25, True)])
def test_rollouts_of_which_something_was_lost_are_judged(
    stage: Stage, stream: Any, caplog: Any, most: float, fails: bool
) -> None:
    """One of each two is lost; none of them failed."""

    async def finish(task: RolloutTask, rollout: Rollout) -> str | None:
        return f"Lost: its row of {task.index}\nhint: wait" if task.index else None

    text = (
        "2 of 4 rollouts failed, more than max_failed_frac=0.25 allows:\n  2 x Lost: its row of 1"
    )
    streaming = stream(
        config={"max_failed_frac": most}, judged=4, finishing=lambda: nullcontext(finish)
    )
    if not fails:
        streaming.wait_for(4)
        assert not any(rollout.failed for _, rollout in itertools.chain(*streaming.stop()))
        warned = [r.getMessage() for r in caplog.records if "Further errors" in r.getMessage()]
        assert len(warned) == 1
        assert warned[0].endswith(
            "Lost: its row of 1\nhint: wait\nFurther errors of this kind are logged at level DEBUG."
        )
        return
    with pytest.raises(RolloutError, match=text):
        streaming.wait_for(9)
    engine = stage.engine(Recording(stage.says()), max_failed_frac=most)
    played, failures = engine.play(stage.tasks([Talk] * 2), finishing=lambda: nullcontext(finish))
    with pytest.raises(RolloutError, match="1 of 2 rollouts failed"):
        failures.judge([failures.tally(played)], most)


def test_a_batch_counts_no_versions(stage: Stage) -> None:
    rollout = stage.play().one
    assert (rollout.streams, rollout.turns[0].newest_version) == ({}, None)


def test_an_environment_that_is_gone_is_tried_again(stream: Any) -> None:
    failed: list[int] = []

    class Once(Talk):
        def reset(self, seed: str) -> Any:
            if not failed:
                failed.append(1)
                raise EnvError("gone")
            return super().reset(seed)

    streaming = stream(Once, at_once=1)
    assert [rollout.attempts for _, rollout in streaming.wait_for_group(0)] == [2, 1]


def test_a_stream_of_thousands_keeps_nothing_of_them(stage: Stage, stream: Any) -> None:
    forgotten: list[str] = []

    class Forgetful(Recording):
        def forget(self, rollout_id: str) -> None:
            forgotten.append(rollout_id)

    streaming = stream(
        env(Talk, turns=1), sampler=Forgetful(stage.says()), size=4, at_once=8, groups=300
    )
    batches: list[Any] = []

    async def deliver(batch: Any, played: Any) -> None:
        batches.append(batch)

    streaming._deliver = deliver
    streaming.end()
    (batch,) = {*batches}
    assert sorted(forgotten) == sorted(f"r{g}-{k}" for g in range(300) for k in range(4))
    assert len(batch.attempts) == len(batch._live_envs) == 0
    closing = batch.closing._closing
    assert len(closing) < 200, "of 1200 environments"
