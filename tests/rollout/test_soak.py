"""A day of training, compressed: thousands of steps with faults, images, agents and a model.

Each step plays 64 short rollouts: 60 of environments, three of ten of which fail, and one agent for
each dialect of the gateway. A quarter of the rollouts show images. A script answers, but the demo's
model samples one rollout in 1,000, in this process. Each row is compared with what its sampler was
asked and what it gave, and the model's rows with a plain forward.

`ABUT_SOAK_STEPS` sets the number of steps.
"""

import asyncio
import dataclasses
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("PIL")
pytest.importorskip("torch")

from abut import agent
from abut.demo.model import build_demo_model
from abut.envs.task import RolloutTask
from abut.gateway.play.played_agent import AgentSource
from abut.gateway.server.gateway import Gateway
from abut.images import BytesLru, Image
from abut.rollout.rollout import Rollout
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.transformers import TransformersSampler
from tests.kit.clients.image_pictures import as_text, encoded, picture
from tests.kit.clients.image_talks import SHOWS, Asks, check_images, seeing_stage
from tests.kit.stage.agents import RUN, check_tree
from tests.kit.stage.faults import (
    FAULTS,
    PROCESS_DIES,
    Plan,
    Talkative,
    World,
    check_heard,
    child_processes,
    open_files,
    plans,
    resident_bytes,
)
from tests.kit.stage.rollouts import LIMIT_S, Stage, check_exact, eventually
from tests.kit.training.vision import own_logprobs

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="/proc and cat"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

STEPS = int(os.environ.get("ABUT_SOAK_STEPS", "16"))
ROLLOUTS, TURNS, TURN_TOKENS = 64, 3, 16
# A hang takes its limit, so few steps have any, none of the short form, and each one heals.
HANGS_EVERY, FIRST_HANG = 100, 50
MODEL_EVERY = 1000
# Caches fill, and the allocator settles, in more steps than the short form has.
STEPS_TO_COMPARE = 200

BY_NAME = {fault.name: fault for fault in FAULTS}
HANGS = [fault for fault in FAULTS if fault.name.startswith("hangs")]
LARGE = BY_NAME["replies 10 MB"]
OTHERS = [fault for fault in (*FAULTS, PROCESS_DIES) if fault not in (*HANGS, LARGE)]
OF_AGENTS = [BY_NAME[name] for name in ("raises in step", "dies", "gives NaN")]


class Step(NamedTuple):
    """A step's rollouts: which ones the model samples, and which ones are of which dialect."""

    world: World
    by_model: frozenset[int]
    agents: dict[int, str]
    hangs: bool

    @classmethod
    def planned(cls, number: int) -> "Step":
        """Plan a step: the same number always gives the same plans."""
        rng, first = np.random.default_rng(number), number * ROLLOUTS
        hangs = number % HANGS_EVERY == FIRST_HANG
        made = plans(number, ROLLOUTS, faults=OTHERS + HANGS * (4 * hangs), turns=TURNS)
        agents = dict(zip(rng.permutation(ROLLOUTS).tolist(), SHOWS, strict=False))
        of_agents = plans(number, len(agents), faults=OF_AGENTS, turns=TURNS)
        for index, plan in zip(agents, of_agents, strict=True):
            made[index] = plan
        by_model = frozenset(i for i in range(ROLLOUTS) if (first + i) % MODEL_EVERY == 0)
        for index, plan in enumerate(made):
            if plan.fault in HANGS:
                made[index] = plan = plan._replace(heals=True)
            if index in by_model:  # which sees nothing, and must have a row
                made[index] = plan._replace(fault=None)
            elif rng.random() < 0.25:
                seeds = ((first + index) * TURNS + np.arange(plan.turns)) * 2
                shown = [[picture(int(at) + k) for k in range(rng.integers(3))] for at in seeds]
                made[index] = plan._replace(images=shown)
        return cls(World(made), by_model, agents, hangs)


class Scripted(Talkative):
    """Says other words with other logprobs in every turn."""

    takes_images = True

    async def sample(self, request: SampleRequest) -> Sample:
        said = await super().sample(request)
        drawn = -np.random.default_rng(request.seed).random(len(said.ids), np.float32)
        self.calls[-1] = request, dataclasses.replace(said, logprobs=drawn)
        return self.calls[-1][1]


class InProcess(Scripted):
    """Samples on the thread that called the engine: one rollout with a model, others by script."""

    def __init__(self, stage: Stage, model: Any, pad_token_id: int) -> None:
        super().__init__(stage)
        self.of_script = super().sample
        self.of_model = TransformersSampler(model, pad_token_id=pad_token_id)
        self.by_model: frozenset[int] = frozenset()

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        return [self.sample_one(request) for request in requests]

    def sample_one(self, request: SampleRequest) -> Sample:
        if int(request.rollout_id[1:].partition("-")[0]) not in self.by_model:
            return asyncio.run(self.of_script(request))
        (sample,) = self.of_model.sample_batch([request])
        self.calls.append((request, sample))
        return sample


def attempt_of_agent(step: Step, index: int, endpoint: Any) -> float:
    """Talk to the policy in the agent's dialect, with the images and the fault of its plan."""
    plan, shows = step.world.plans[index], SHOWS[step.agents[index]]
    attempt = step.world.attempts[index]
    step.world.attempts[index] += 1
    fault = plan.fault.name if plan.fault and not (plan.heals and attempt) else ""
    client: Any = shows.kind(Asks(endpoint))  # type: ignore[arg-type]
    history: list[Any] = []
    for turn in range(plan.turns):
        if fault == "raises in step" and turn + 1 == plan.at:
            raise ValueError("boom")
        if fault == "dies" and turn + 1 == plan.at:
            raise SystemExit(3)
        pixels = plan.images[turn] if plan.images else ()
        parts = [shows.image(as_text(encoded(one))) for one in pixels]
        history.append(shows.said(f"rollout {index} attempt {attempt} turn {turn}", *parts))
        history += shows.answered(client.ask(history))
    is_scored = not (fault == "gives NaN" and plan.at == plan.turns)
    return float(plan.turns) if is_scored else float("nan")


class Day:
    """The engines and the gateway of a run, which plays step after step."""

    def __init__(self) -> None:
        self.stage, self.hf_processor = seeing_stage("llava")
        hf_tokenizer = self.hf_processor.tokenizer
        self.model = build_demo_model(hf_tokenizer).eval()
        self.scripted = Scripted(self.stage)
        self.in_process = InProcess(self.stage, self.model, hf_tokenizer.pad_token_id)
        self.engines = {
            (sampler, hangs): self.stage.engine(
                sampler,
                max_turns=TURNS,
                max_turn_tokens=TURN_TOKENS,
                **({"reset_timeout_s": LIMIT_S, "step_timeout_s": LIMIT_S} if hangs else {}),
            )
            for sampler in (self.scripted, self.in_process)
            for hangs in (False, True)
        }
        self.gateway = Gateway()
        self.gateway.registry.join_run(RUN, rank=None)
        self.step = Step.planned(0)

        @agent
        def talk(endpoint: Any, index: int) -> float:
            return attempt_of_agent(self.step, index, endpoint)

        self.talk = AgentSource(talk, self.gateway).bind(self.stage.processor)

    def play(self, number: int) -> None:
        """Play a step and check it."""
        self.step = step = Step.planned(number)
        sampler = self.in_process if step.by_model else self.scripted
        self.in_process.by_model = step.by_model
        try:
            rollouts = self.engines[sampler, step.hangs].run(self.tasks(step))
        finally:
            step.world.released.set()
        calls = sampler.last_attempts()
        assert [rollout.index for rollout in rollouts] == list(range(ROLLOUTS))
        for plan, rollout in zip(step.world.plans, rollouts, strict=True):
            attempt = f".{rollout.attempts - 1}" if rollout.index in step.agents else ""
            self.check(step, plan, rollout, calls[rollout.rollout_id + attempt])
        sampler.calls.clear()
        sampler.requests.clear()

    def tasks(self, step: Step) -> list[RolloutTask]:
        return [
            dataclasses.replace(
                task,
                rollout_id=f"{task.rollout_id}-{RUN}",
                source=self.talk if index in step.agents else task.source,
                columns={"index": index},
            )
            for index, task in enumerate(step.world.tasks())
        ]

    def check(self, step: Step, plan: Plan, rollout: Rollout, calls: Any) -> None:
        """A rollout ended as planned, and its rows are those of its last attempt's samples."""
        is_agent = rollout.index in step.agents
        assert rollout.attempts == plan.attempts
        turns = plan.turns if plan.error is None else plan.at - 1
        if plan.error is not None:
            assert rollout.error if is_agent else rollout.error == plan.error
            if not is_agent:
                assert (rollout.columns, rollout.reward) == (None, None)
                return  # but the row of an agent is kept, without a reward
        else:
            assert rollout.error is None, "\n".join(rollout.attempt_tracebacks)
        assert rollout.reward == plan.reward
        assert len(calls) == turns
        if not turns:
            assert rollout.columns is None
            return
        if is_agent:
            check_tree(rollout, calls)
        else:
            check_exact(rollout.columns, calls)
        if rollout.index in step.by_model:
            for row in (rollout, *rollout.branches):
                self.replay(row.columns)
            return
        if not is_agent:
            check_heard(rollout)
        assert not rollout.branches
        shown = [one for images in plan.images[:turns] for one in images]
        check_images(rollout, self.stage, *shown)
        asked = [span.image for span in calls[-1][0].images]
        assert asked == [Image.of(one) for one in shown]

    def replay(self, columns: Any) -> None:
        """The logprobs are those of a plain forward over the row."""
        ids = np.concatenate([columns.prompt_ids, columns.completion_ids])
        never = self.stage.processor.images.never_token_ids
        own = own_logprobs(self.model, self.hf_processor, ids, [], never=never).numpy()
        sampled = columns.env_mask == 1
        differences = np.abs(columns.logprobs - own[-len(sampled) :])[sampled]
        assert differences.max() < 1e-5


@pytest.fixture
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No open file, no thread and no child process; whatever was there before counts for nobody."""
    monkeypatch.setattr("abut.rollout.env_loops._CLOSE_S", 0.5)
    # The caches of images are full after a few steps, not after thousands.
    monkeypatch.setattr("abut.images._PIXELS", BytesLru(2**20))
    monkeypatch.setattr("abut.template.image_processor._TENSOR_BYTES", 2**20)
    files, threads, children = open_files(), {*threading.enumerate()}, child_processes()
    yield
    assert eventually(lambda: {*threading.enumerate()} <= threads), threading.enumerate()
    assert child_processes() <= children
    assert open_files() == files


@pytest.mark.usefixtures("nothing_is_left")
def test_a_day_of_training(caplog: Any, capsys: Any) -> None:
    caplog.set_level(logging.ERROR, logger="abut")  # pytest keeps what is logged
    resident: list[int] = []
    began = time.monotonic()
    day = Day()
    try:
        for number in range(STEPS):
            day.play(number)
            if number % max(1, STEPS // 100) == 0:
                gc.collect()
                resident.append(resident_bytes())
            if STEPS >= STEPS_TO_COMPARE and number % (STEPS // 10) == 0:
                with capsys.disabled():
                    passed = time.monotonic() - began
                    print(f"step {number} of {STEPS} after {passed:.0f} s", flush=True)
    finally:
        day.gateway.stop()
    tenths = [max(part) for part in np.array_split(resident, 10)]
    if STEPS >= STEPS_TO_COMPARE:
        with capsys.disabled():
            megabytes = ", ".join(f"{tenth / 2**20:.1f}" for tenth in tenths)
            print(f"\n{STEPS} steps in {time.monotonic() - began:.0f} s; MiB by tenth: {megabytes}")
        assert tenths[-1] <= 1.05 * tenths[1]
