"""Faults by the thousand: what fails costs its own rollout, and nothing of it is left.

512 rollouts of up to 20 turns, three of ten with an environment that fails in one of the ways of
`FAULTS`. What comes of each rollout is known beforehand, and each row that survives is compared
with what the sampler saw and sampled in its last attempt, and with the chat template's render.
"""

import asyncio
import ctypes
import gc
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import abut.rollout.env_loops
from abut.envs.task import RolloutTask
from abut.openenv import OpenEnv
from abut.rollout.rollout import Rollout
from abut.samplers.sampler import Sample, SampleRequest
from tests.kit.servers.wire_server import WireServer
from tests.kit.stage.rollouts import (
    LIMIT_S,
    SOAK,
    Recording,
    Stage,
    Talk,
    asynced,
    check_exact,
    env,
    eventually,
    own_threads,
)

ROLLOUTS, TURNS = 512, 20
FAULTY = 0.3
BIG = " argument" * 1_111_112
RELEASED_S = 30.0

pytestmark = pytest.mark.usefixtures("no_thread_stays")


Calls = Sequence[tuple[SampleRequest, Sample]]


class Fault(NamedTuple):
    """What an environment does, and what its rollout says of it; None where it survives."""

    name: str
    error: str | None


HINT = "hint: return (self, text), or a list of messages"
FAULTS = (
    Fault("raises in the factory", "{env}() raised ValueError: boom"),
    Fault("raises in reset", "{env}.reset raised ValueError: boom"),
    Fault("raises in step", "{env}.step raised ValueError: boom"),
    Fault("raises in alive", "{env}.alive raised OSError: gone"),
    Fault("dies", "{env}.step raised SystemExit: 3"),
    Fault("hangs in reset", "{env}.reset did not answer within reset_timeout_s=6"),
    Fault("hangs in step", "{env}.step did not answer within step_timeout_s=6"),
    Fault(
        "returns no pair",
        "{env}.step must return (env, reply), got int: '42'\nhint: return (self, text)",
    ),
    Fault(
        "replies a number",
        f"{{env}}.step must reply with a str or a list of messages, got int: '42'\n{HINT}",
    ),
    Fault("gives a grade", "{env}.reward must be a number or None, got str: 'A+'"),
    Fault("gives NaN", None),
    Fault("gives None", None),
    Fault("replies 10 MB", None),
    Fault("raises in close", None),
    Fault("dies in close", None),
    Fault("hangs in close", None),
)


class Plan(NamedTuple):
    """What one rollout meets."""

    fault: Fault | None
    turns: int
    at: int
    """The turn at which it fails."""
    heals: bool
    """Whether the second attempt is free of it."""
    is_async: bool

    @property
    def attempts(self) -> int:
        return 1 if self.fault is None or self.fault.error is None else 2

    @property
    def error(self) -> str | None:
        if self.fault is None or self.fault.error is None or self.heals:
            return None
        name = "AsyncFaulty" if self.is_async else "Faulty"
        return "EnvError: " + self.fault.error.format(env=name)


def plans(seed: int, count: int) -> list[Plan]:
    rng = np.random.default_rng(seed)
    faulty = set(rng.permutation(count)[: round(FAULTY * count)].tolist())
    # Ten megabytes take a part of a second to tokenize, and many tokens.
    weights = np.asarray([0.2 if fault.name == "replies 10 MB" else 1.0 for fault in FAULTS])
    odds = weights / weights.sum()
    found = []
    for index in range(count):
        turns = int(rng.integers(1, TURNS + 1))
        fault = FAULTS[int(rng.choice(len(FAULTS), p=odds))] if index in faulty else None
        at = int(rng.integers(1, turns + 1))
        found.append(Plan(fault, turns, at, bool(rng.integers(2)), bool(rng.integers(2))))
    return found


class Faulty:
    """Fails as its plan says; its words say whose they are, and of which attempt."""

    def __init__(self, world: "World", index: int) -> None:
        self.plan = world.plans[index]
        self.released = world.released
        self.attempt = world.attempts[index]
        self.fails = not (self.plan.heals and self.attempt)
        world.attempts[index] += 1
        self.name = f"rollout {index} attempt {self.attempt}"
        self.turn = 0
        self.reward: Any = 0.0
        if self.does("raises in the factory"):
            raise ValueError("boom")

    def does(self, fault: str) -> bool:
        return self.fails and self.plan.fault is not None and self.plan.fault.name == fault

    def does_now(self, fault: str) -> bool:
        return self.turn == self.plan.at and self.does(fault)

    @property
    def alive(self) -> bool:
        if self.does_now("raises in alive"):
            raise OSError("gone")
        return self.turn < self.plan.turns

    def reset(self, seed: str) -> Any:
        self.wait_if(self.does("hangs in reset"))
        return self._reset()

    def step(self, action: str) -> Any:
        self.turn += 1
        self.wait_if(self.does_now("hangs in step"))
        return self._step(action)

    def close(self) -> None:
        self.wait_if(self.does("hangs in close"))
        self._close()

    def wait_if(self, hangs: bool) -> None:
        if hangs:
            self.released.wait(RELEASED_S)

    def _reset(self) -> Any:
        if self.does("raises in reset"):
            raise ValueError("boom")
        return self, f"{self.name} begins"

    def _step(self, action: str) -> Any:
        if self.does_now("raises in step"):
            raise ValueError("boom")
        if self.does_now("dies"):
            raise SystemExit(3)
        if self.does_now("returns no pair"):
            return 42
        if self.does_now("replies a number"):
            return self, 42
        self.reward = float(self.turn)
        for fault, reward in (
            ("gives a grade", "A+"),
            ("gives NaN", float("nan")),
            ("gives None", None),
        ):
            if self.does_now(fault):
                self.reward = reward
        big = BIG * self.does_now("replies 10 MB")
        return self, f"{self.name} heard {action} {big}"

    def _close(self) -> None:
        if self.does("raises in close"):
            raise ValueError("boom")
        if self.does("dies in close"):
            raise SystemExit(3)


class AsyncFaulty(Faulty):
    """Its asynchronous twin; what hangs in it can be cancelled."""

    async def reset(self, seed: str) -> Any:  # type: ignore[override]
        await self.wait_async_if(self.does("hangs in reset"))
        return self._reset()

    async def step(self, action: str) -> Any:  # type: ignore[override]
        self.turn += 1
        await self.wait_async_if(self.does_now("hangs in step"))
        return self._step(action)

    async def close(self) -> None:  # type: ignore[override]
        await self.wait_async_if(self.does("hangs in close"))
        self._close()

    async def wait_async_if(self, hangs: bool) -> None:
        await asyncio.sleep(RELEASED_S if hangs else 0)


class World:
    """A batch: what each rollout meets, and how often it was begun."""

    def __init__(self, seed: int, count: int) -> None:
        self.plans = plans(seed, count)
        self.attempts = [0] * count
        self.released = threading.Event()
        """Ends what hangs on threads, which nothing else can end."""

    def tasks(self) -> list[RolloutTask]:
        def factory(index: int) -> Any:
            cls = AsyncFaulty if self.plans[index].is_async else Faulty

            def make() -> Any:
                return cls(self, index)

            make.__name__ = cls.__name__
            return make

        return [RolloutTask(i, f"r{i}", factory(i), [], str(i), i) for i in range(len(self.plans))]


class Talkative(Recording):
    """Says other words in every turn of every attempt; every third turn is cut."""

    def __init__(self, stage: Stage) -> None:
        words = [stage.tokenizer.encode(word).tolist() for word in ("yes ", "no ", "so ", "go ")]

        def script(request: SampleRequest) -> list[int]:
            rng = np.random.default_rng(request.seed)
            spoken = [id for word in rng.integers(0, len(words), 6) for id in words[word]]
            return spoken if rng.integers(3) == 0 else [*spoken, stage.processor.close_token_id]

        super().__init__(script)

    def last_attempts(self) -> dict[str, list[tuple[SampleRequest, Sample]]]:
        found: dict[str, list[tuple[SampleRequest, Sample]]] = defaultdict(list)
        for request, sample in self.calls:
            if request.turn == 0:
                found[request.rollout_id].clear()
            found[request.rollout_id].append((request, sample))
        return found


def check_survivor(stage: Stage, hf_tokenizer: Any, rollout: Rollout, calls: Calls) -> None:
    """Its row is its last attempt: to the sampler, to the environment and to the template."""
    check_exact(rollout.columns, calls)
    text = stage.row_text(rollout)
    spoken = max(i for i, message in enumerate(rollout.messages) if message["role"] == "assistant")
    rendered = hf_tokenizer.apply_chat_template(rollout.messages[: spoken + 1], tokenize=False)
    assert rendered.removesuffix("\n").removesuffix("<|im_end|>") == text.removesuffix("<|im_end|>")
    heard = [message["content"] for message in rollout.messages if message["role"] == "user"]
    name = f"rollout {rollout.index} attempt {rollout.attempts - 1}"
    assert heard[0] == f"{name} begins"
    said = [message["content"] for message in rollout.messages if message["role"] == "assistant"]
    for answer, reply in zip(said, heard[1:], strict=False):
        assert reply.startswith(f"{name} heard {answer}")


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
            scored = not (fault in ("gives NaN", "gives None") and at_last)
            assert rollout.reward == (float(plan.turns) if scored else None)


def open_sockets() -> set[str]:
    """Those that something still holds; not those of what was only not yet collected.

    None where the system does not say: macOS and Windows have no /proc.
    """
    gc.collect()
    folder = Path("/proc/self/fd")
    links = [os.path.realpath(link) for link in folder.iterdir()] if folder.is_dir() else []
    return {link for link in links if "socket:" in link}


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
    Batches(stage, hf_tokenizer).play(World(0, ROLLOUTS))


@SOAK
@pytest.mark.usefixtures("nothing_stays")
def test_memory_is_flat_over_fifty_batches(
    stage: Stage, hf_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="abut")  # what pytest keeps is no leak of ours
    batches = Batches(stage, hf_tokenizer)
    objects, resident = [], []
    for seed in range(50):
        batches.play(World(100 + seed, ROLLOUTS))
        assert eventually(lambda: not own_threads()), own_threads()
        batches.sampler.calls.clear()
        batches.sampler.requests.clear()
        gc.collect()
        objects.append(len(gc.get_objects()))
        resident.append(resident_bytes())
    # One object for each rollout would be 15 000 more.
    assert max(objects[40:]) - max(objects[5:15]) < 1000, objects
    assert max(resident[40:]) < 1.05 * max(resident[5:15]), resident


def resident_bytes() -> int:
    """What the process holds; its allocator too, but for what `make test-soak` has it let go."""
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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
                check_heard(rollout)
    assert eventually(lambda: not server.active)


def check_heard(rollout: Rollout) -> None:
    """The server says back each action: of this episode, and of no other."""
    said = [message["content"] for message in rollout.messages if message["role"] == "assistant"]
    heard = [message["content"] for message in rollout.messages if message["role"] == "user"]
    assert heard[0] == f"seed {rollout.index}"
    for answer, reply in zip(said, heard[1:], strict=False):
        assert reply in (answer, BIG_REPLY, "n")
