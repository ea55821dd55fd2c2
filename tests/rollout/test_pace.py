"""Nobody waits for the slowest: a batch takes as long as its slowest rollout, and no longer.

Rollouts that stand still until all others have ended show that, whatever else the machine does.
What it takes in seconds is for the soak, on a machine that does nothing else.

The delays of steps and samples are drawn from a log-normal distribution (median 100 ms, sigma 1).
What a batch may take is computed from the delays as the environment and the sampler have seen them,
so that a busy machine, on which a sleep takes longer, moves both sides.
"""

import asyncio
import heapq
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abut.concurrency.threads import _IDLE_S as IDLE_S
from abut.envs.task import RolloutTask
from abut.records.recorder import JsonlRecorder
from abut.samplers.sampler import Sample, SampleRequest
from tests.kit.stage.rollouts import (
    SOAK,
    Recording,
    Stage,
    Talk,
    assert_done,
    asynced,
    check_exact,
    env,
)

ROLLOUTS, TURNS, SLOTS = 128, 8, 16
# A machine that does other work as well gets more; to wait for the slowest takes twice as long.
SLACK = 1.05 if "ABUT_SOAK" in os.environ else 1.3
SEEDS = (0, 1, 2)
# Nearly all of it is sleep. But engines in one process wait for each other's turn with the
# interpreter, which costs three at once 3 % of their time.
AT_ONCE = 1 if "ABUT_SOAK" in os.environ else len(SEEDS)
# With few slots, a long step that comes last leaves the other slots idle, and nobody knows before
# which one is long: of 300 seeds, fewest turns first on an ideal machine comes within 5 % of the
# bound for 34 % (median: 7 % above it). For these it comes within 1.4 %.
KIND_SEEDS = (45, 83, 164)

pytestmark = pytest.mark.usefixtures("no_thread_stays")


class Delays:
    """What steps and samples take in one batch, as drawn and as seen."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.drawn = 0.1 * np.exp(rng.standard_normal((2, ROLLOUTS, TURNS)))
        self.seen: dict[int, list[float]] = defaultdict(list)
        """For each rollout, sample and step in turn."""

    def sample_s(self, rollout: int) -> float:
        return float(self.drawn[0, rollout, len(self.seen[rollout]) // 2])

    def step_s(self, rollout: int) -> float:
        return float(self.drawn[1, rollout, len(self.seen[rollout]) // 2])

    def own_s(self) -> float:
        """What the slowest rollout takes by itself."""
        return max(map(sum, self.seen.values()))

    def bound_s(self, slots: int) -> float:
        """What no schedule comes below: the slowest rollout, or all steps in so many slots.

        A slot has nothing to do before a first sample is there, the second not before a second.
        """
        first = sorted(seen[0] for seen in self.seen.values())[:slots]
        steps = sum(sum(seen[1::2]) for seen in self.seen.values())
        return max(self.own_s(), (steps + sum(first)) / slots)

    def ideal_s(self, slots: int) -> float:
        """What fewest turns first takes in so many slots, on a machine that costs nothing."""
        events = [(seen[0], "comes", rollout, 0) for rollout, seen in self.seen.items()]
        heapq.heapify(events)
        waiting: list[tuple[int, float, int]] = []
        now = 0.0
        while events:
            now, what, rollout, turn = heapq.heappop(events)
            if what == "comes":
                heapq.heappush(waiting, (turn, now, rollout))
            else:
                slots += 1
                if turn + 1 < TURNS:
                    sample_s = self.seen[rollout][2 * turn + 2]
                    heapq.heappush(events, (now + sample_s, "comes", rollout, turn + 1))
            while slots and waiting:
                turn, _, rollout = heapq.heappop(waiting)
                slots -= 1
                heapq.heappush(
                    events, (now + self.seen[rollout][2 * turn + 1], "ends", rollout, turn)
                )
        return now

    def lock_step_s(self) -> float:
        """What a loop takes in which each turn waits for the slowest sample and step."""
        return float(np.max(list(self.seen.values()), axis=0).sum())


class Sleepy(Talk):
    """Its step takes what was drawn."""

    turns = TURNS
    delays: Delays

    def reset(self, seed: str) -> Any:
        self.rollout = int(seed)
        return super().reset(seed)

    def step(self, action: str) -> Any:
        began = time.monotonic()
        time.sleep(self.delays.step_s(self.rollout))
        self.delays.seen[self.rollout].append(time.monotonic() - began)
        return super().step(action)


class AsyncSleepy(Sleepy):
    async def reset(self, seed: str) -> Any:  # type: ignore[override]
        return Sleepy.reset(self, seed)

    async def step(self, action: str) -> Any:  # type: ignore[override]
        began = time.monotonic()
        await asyncio.sleep(self.delays.step_s(self.rollout))
        self.delays.seen[self.rollout].append(time.monotonic() - began)
        return Talk.step(self, action)


class SlowSampler(Recording):
    def __init__(self, script: Any, delays: Delays) -> None:
        super().__init__(script)
        self.delays = delays

    async def sample(self, request: SampleRequest) -> Sample:
        rollout = int(request.rollout_id)
        began = time.monotonic()
        await asyncio.sleep(self.delays.sample_s(rollout))
        self.delays.seen[rollout].append(time.monotonic() - began)
        return await super().sample(request)


def play(stage: Stage, base: Any, seed: int, **config: Any) -> tuple[float, Delays]:
    """Play a batch; returns the seconds it took, and the delays."""
    delays = Delays(seed)
    cls = env(base, delays=delays)
    sampler = SlowSampler(stage.says(), delays)
    tasks = [RolloutTask(i, str(i), cls, [], str(i), 0) for i in range(ROLLOUTS)]
    engine = stage.engine(sampler, max_turns=TURNS, **config)
    began = time.monotonic()
    rollouts = engine.run(tasks)
    seconds = time.monotonic() - began
    by_rollout = defaultdict(list)
    for call in sampler.calls:
        by_rollout[call[0].rollout_id].append(call)
    for rollout in rollouts:
        assert_done(rollout)
        check_exact(rollout.columns, by_rollout[rollout.rollout_id])
        assert len(delays.seen[rollout.index]) == 2 * TURNS
    return seconds, delays


def assert_pace(
    stage: Stage, base: Any, seeds: Sequence[int], bound: Callable[[Delays], float], **config: Any
) -> None:
    """No seed takes longer than its bound allows.

    What a busy machine made slow is played again, twice at the most: chance does not help an engine
    that waits for the slowest.
    """
    slow: dict[int, float] = dict.fromkeys(seeds, math.inf)
    for _ in range(3):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            played = list(pool.map(lambda seed: play(stage, base, seed, **config), slow))
        ratios = [seconds / bound(delays) for seconds, delays in played]
        slow = {seed: r for seed, r in zip(slow, ratios, strict=True) if r > SLACK}
        if not slow:
            return
    pytest.fail(f"over {SLACK} times the bound, by seed: {slow}")


class Others:
    """Opens where all rollouts but those that are held have taken their last step."""

    def __init__(self, held: Sequence[tuple[str, int]]) -> None:
        self.held = held
        self._left = [*range(len(held), ROLLOUTS)]
        self._ended: Future[None] = Future()
        self._lock = threading.Lock()

    def took(self, rollout: int, turn: int) -> None:
        if rollout >= len(self.held) and turn == TURNS:
            with self._lock:
                self._left.remove(rollout)
                if not self._left:
                    self._ended.set_result(None)

    def holds(self, rollout: int, what: str, turn: int) -> bool:
        return rollout < len(self.held) and self.held[rollout] == (what, turn)

    def wait(self) -> None:
        self._ended.result()

    async def wait_async(self) -> None:
        await asyncio.shield(asyncio.wrap_future(self._ended))


class Held(Talk):
    """Stands still in the step that is held."""

    turns = TURNS
    others: Others

    def reset(self, seed: str) -> Any:
        self.rollout = int(seed)
        return super().reset(seed)

    def is_held(self) -> bool:
        return self.others.holds(self.rollout, "step", len(self.actions))

    def step(self, action: str) -> Any:
        if self.is_held():
            self.others.wait()
        return self.take(action)

    def take(self, action: str) -> Any:
        said = super().step(action)
        self.others.took(self.rollout, len(self.actions))
        return said


class AsyncHeld(Held):
    async def reset(self, seed: str) -> Any:  # type: ignore[override]
        return Held.reset(self, seed)

    async def step(self, action: str) -> Any:  # type: ignore[override]
        if self.is_held():
            await self.others.wait_async()
        return self.take(action)


class HeldSampler(Recording):
    def __init__(self, script: Any, others: Others) -> None:
        super().__init__(script)
        self.others = others

    async def sample(self, request: SampleRequest) -> Sample:
        if self.others.holds(int(request.rollout_id), "sample", request.turn):
            await self.others.wait_async()
        return await super().sample(request)


def play_held(stage: Stage, base: Any, held: Sequence[tuple[str, int]], **config: Any) -> list[Any]:
    """Rollouts of which the first stand still, each in its place, until the others have ended."""
    others = Others(held)
    cls = env(base, others=others)
    tasks = [RolloutTask(i, str(i), cls, [], str(i), 0) for i in range(ROLLOUTS)]
    engine = stage.engine(HeldSampler(stage.says(), others), max_turns=TURNS, **config)
    return engine.run(tasks)


HOLDS = pytest.mark.parametrize("base", [Held, AsyncHeld], ids=["sync", "async"])


@HOLDS
def test_nobody_waits_for_a_slower_rollout(stage: Stage, base: Any) -> None:
    """Not before, in or behind any sample or step."""
    held = [(what, turn) for what in ("sample", "step") for turn in range(TURNS)]
    for rollout in play_held(stage, base, held, max_env_steps=ROLLOUTS):
        assert_done(rollout)


@HOLDS
def test_a_hold_notices_who_waits_for_it(stage: Stage, base: Any) -> None:
    """Who holds all slots holds all others, and itself."""
    held = [("step", 0)] * SLOTS
    config = {"retries": 0, "step_timeout_s": 0.5, "max_failed_frac": 1.0}
    rollouts = play_held(stage, base, held, max_env_steps=SLOTS, **config)
    assert any(rollout.failed for rollout in rollouts[:SLOTS])


TWINS = pytest.mark.parametrize("base", [Sleepy, AsyncSleepy], ids=["sync", "async"])


@SOAK
@TWINS
def test_a_batch_takes_what_its_slowest_rollout_takes(stage: Stage, base: Any) -> None:
    assert_pace(stage, base, SEEDS, Delays.own_s, max_env_steps=ROLLOUTS)


@SOAK
@TWINS
def test_few_slots_take_what_the_best_schedule_takes(stage: Stage, base: Any) -> None:
    assert_pace(stage, base, KIND_SEEDS, lambda d: d.bound_s(SLOTS), max_env_steps=SLOTS)


@SOAK
@TWINS
def test_few_slots_serve_fewest_turns_first(stage: Stage, base: Any) -> None:
    assert_pace(stage, base, SEEDS, lambda d: d.ideal_s(SLOTS), max_env_steps=SLOTS)


def test_the_bounds_notice_other_schedules() -> None:
    """A turn that waits for the slowest, and slots that serve who came first."""
    for seed in SEEDS:
        delays = Delays(seed)
        for rollout in range(ROLLOUTS):
            delays.seen[rollout] = delays.drawn[:, rollout].T.reshape(-1).tolist()
        assert delays.lock_step_s() > 2.1 * delays.own_s()
        assert delays.own_s() < delays.bound_s(SLOTS) <= delays.ideal_s(SLOTS)
    for seed in KIND_SEEDS:
        delays = Delays(seed)
        for rollout in range(ROLLOUTS):
            delays.seen[rollout] = delays.drawn[:, rollout].T.reshape(-1).tolist()
        assert delays.ideal_s(SLOTS) < 1.015 * delays.bound_s(SLOTS)


# ---- what the engine itself takes

COST_ROLLOUTS, COST_TURNS = 512, 20


def seconds_per_turn(stage: Stage, file: Path, base: Any) -> float:
    """Processor time of one turn, in which sampler and environment answer at once."""
    sampler = AtOnce(stage)
    engine = stage.engine(sampler, completion=10**6, max_turns=COST_TURNS)
    tasks = stage.tasks([env(base, turns=COST_TURNS)] * COST_ROLLOUTS)
    recorder = JsonlRecorder(file)
    began = time.process_time()
    rollouts = engine.run(tasks, on_rollout=recorder.write)
    seconds = time.process_time() - began
    assert sum(len(rollout.turns) for rollout in rollouts) == COST_ROLLOUTS * COST_TURNS
    return seconds / (COST_ROLLOUTS * COST_TURNS)


class AtOnce:
    """Always says the same."""

    def __init__(self, stage: Stage) -> None:
        ids = np.asarray([*stage.tokenizer.encode("yes"), stage.processor.close_token_id])
        self.said = Sample(ids, np.full(len(ids), -0.5, np.float32), "stop")

    async def sample(self, request: SampleRequest) -> Sample:
        return self.said


@SOAK
@pytest.mark.parametrize("base", [Talk, asynced(Talk)], ids=["sync", "async"])
def test_a_turn_costs_less_than_a_third_of_a_millisecond(
    stage: Stage, tmp_path: Path, monkeypatch: Any, base: Any
) -> None:
    """With template, threads, deadlines and recorder; other work on the machine only adds to it."""
    # As long as for users: threads that ended within a batch would be started anew.
    monkeypatch.setattr("abut.concurrency.threads._IDLE_S", IDLE_S)
    costs = (seconds_per_turn(stage, tmp_path / f"{n}.jsonl", base) for n in range(5))
    assert any(cost < 0.0003 for cost in costs)
