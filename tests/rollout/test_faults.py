"""Faults by the thousand: what fails costs its own rollout, and nothing of it is left.

512 rollouts of up to 20 turns, three of ten with an environment that fails in one of the ways of
`FAULTS`. What comes of each rollout is known beforehand, and each row that survives is compared
with what the sampler saw and sampled in its last attempt, and with the chat template's render.
"""

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import abut.rollout.env_loops
from abut.envs.task import RolloutTask
from abut.openenv import OpenEnv
from abut.rollout.rollout import Rollout
from tests.kit.servers.wire_server import WireServer
from tests.kit.stage.faults import (
    FAULTY,
    RELEASED_S,
    TURNS,
    Calls,
    Plan,
    Talkative,
    World,
    check_survivor,
    open_sockets,
    plans,
    resident_bytes,
)
from tests.kit.stage.rollouts import (
    LIMIT_S,
    SOAK,
    Stage,
    Talk,
    asynced,
    check_exact,
    env,
    eventually,
    own_threads,
)

ROLLOUTS = 512

pytestmark = pytest.mark.usefixtures("no_thread_stays")


class Batches:
    """One engine, which plays one batch after the other."""

    def __init__(self, stage: Stage, hf_tokenizer: Any) -> None:
        self.stage = stage
        self.hf_tokenizer = hf_tokenizer
        self.sampler = Talkative(stage)
        self.engine = stage.engine(
            self.sampler,
            completion=20_000,
            max_turns=TURNS,
            retries=1,
            max_failed_frac=FAULTY,
            reset_timeout_s=LIMIT_S,
            step_timeout_s=LIMIT_S,
        )

    def play(self, world: World) -> None:
        self.sampler.calls.clear()
        self.sampler.requests.clear()
        try:
            rollouts = self.engine.run(world.tasks())
        finally:
            world.released.set()
        assert [rollout.index for rollout in rollouts] == list(range(len(world.plans)))
        calls = self.sampler.last_attempts()
        for plan, rollout in zip(world.plans, rollouts, strict=True):
            assert rollout.error == plan.error
            assert rollout.attempts == plan.attempts
            if plan.error is None:
                self.check(plan, rollout, calls[rollout.rollout_id])
            else:
                assert (rollout.columns, rollout.reward) == (None, None)

    def check(self, plan: Plan, rollout: Rollout, calls: Calls) -> None:
        check_survivor(self.stage, self.hf_tokenizer, rollout, calls)
        fault = plan.fault.name if plan.fault else ""
        at_last = plan.at == plan.turns
        if fault == "replies 10 MB" and not at_last:
            assert rollout.stop_reason == "max_completion_tokens"
            assert rollout.reward == float(plan.at)
        else:
            assert rollout.stop_reason == "env_done"
            assert rollout.reward == plan.reward


@pytest.fixture(autouse=True)
def close_is_waited_for_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abut.rollout.env_loops, "_CLOSE_S", 0.5)


@pytest.fixture
def nothing_stays(no_thread_stays: None) -> Iterator[None]:
    """No thread, no socket and no task is left."""
    sockets = open_sockets()
    yield
    assert eventually(lambda: not own_threads()), own_threads()
    assert open_sockets() <= sockets
    tasks = [thing for thing in gc.get_objects() if issubclass(type(thing), asyncio.Task)]
    assert all(task.done() for task in tasks)


@pytest.mark.usefixtures("nothing_stays")
def test_each_rollout_of_a_batch_ends_as_its_environment_does(
    stage: Stage, hf_tokenizer: Any
) -> None:
    Batches(stage, hf_tokenizer).play(World(plans(0, ROLLOUTS)))


@SOAK
@pytest.mark.usefixtures("nothing_stays")
def test_memory_is_flat_over_fifty_batches(
    stage: Stage, hf_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="abut")  # what pytest keeps is no leak of ours
    batches = Batches(stage, hf_tokenizer)
    objects, resident = [], []
    for seed in range(50):
        batches.play(World(plans(100 + seed, ROLLOUTS)))
        assert eventually(lambda: not own_threads()), own_threads()
        batches.sampler.calls.clear()
        batches.sampler.requests.clear()
        gc.collect()
        objects.append(len(gc.get_objects()))
        resident.append(resident_bytes())
    # One object for each rollout would be 15 000 more.
    assert max(objects[40:]) - max(objects[5:15]) < 1000, objects
    assert max(resident[40:]) < 1.05 * max(resident[5:15]), resident


def test_what_hangs_on_a_thread_keeps_that_thread_and_nothing_else(stage: Stage) -> None:
    """Python cannot end a thread: it is left alone, and ends when its call returns."""
    release = threading.Event()
    hanging = env(step=lambda self, action: release.wait(RELEASED_S))
    calls = {"retries": 0, "step_timeout_s": LIMIT_S, "max_env_steps": 4}
    others = [Talk, asynced(Talk)] * 6
    try:
        rollouts = stage.play(*[hanging] * 4, *others, **calls).rollouts
        assert [rollout.failed for rollout in rollouts] == [True] * 4 + [False] * 12
        assert eventually(lambda: len(own_threads()) == 4), own_threads()
    finally:
        release.set()
    assert eventually(lambda: not own_threads()), own_threads()


# ---- over a socket

BIG_REPLY = "x" * 10**6
WIRE_FAULTS = (
    "drop", "close", "late 1.5", "reward NaN", "reward 1e999", "reward \"A+\"", "raise",
    f"big {len(BIG_REPLY)}", "raw {}", "raw nonsense", "raw [1]", 'raw {"type": "state"}',
)  # fmt: skip


@pytest.mark.usefixtures("nothing_stays")
def test_faults_of_a_server_cost_their_own_rollouts(stage: Stage) -> None:
    rng = np.random.default_rng(0)
    faults = [
        WIRE_FAULTS[int(rng.integers(len(WIRE_FAULTS)))] if rng.random() < FAULTY else ""
        for _ in range(400)
    ]
    sampler = Talkative(stage)
    engine = stage.engine(
        sampler, completion=20_000, retries=2, step_timeout_s=1.0, max_failed_frac=1.0
    )
    with WireServer(faults=faults) as server, OpenEnv(server.url) as openenv:
        tasks = [RolloutTask(i, f"r{i}", openenv, [], "seed", i, group=i) for i in range(128)]
        rollouts = engine.run(tasks)
        again = [rollout for rollout in rollouts if rollout.attempts > 1]
        assert len(again) > FAULTY * len(rollouts) / 2
        assert sum(rollout.failed for rollout in again) < len(again)
        assert [rollout.index for rollout in rollouts] == list(range(128))
        calls = sampler.last_attempts()
        for rollout in rollouts:
            if not rollout.failed:
                check_exact(rollout.columns, calls[rollout.rollout_id])
                check_echoed(rollout)
    assert eventually(lambda: not server.active)


def check_echoed(rollout: Rollout) -> None:
    """The server says back each action: of this episode, and of no other."""
    said = [message["content"] for message in rollout.messages if message["role"] == "assistant"]
    heard = [message["content"] for message in rollout.messages if message["role"] == "user"]
    assert heard[0] == f"seed {rollout.index}"
    for answer, reply in zip(said, heard[1:], strict=False):
        assert reply in (answer, BIG_REPLY, "n")
