"""What rollouts are tested on: small environments, a stage that plays them, and the exact check."""

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from abut.envs.task import RolloutTask
from abut.rollout.config import RolloutConfig
from abut.rollout.engine import Engine
from abut.rollout.rollout import Rollout
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.scripted import ScriptedSampler

Script = Callable[[SampleRequest], Sequence[int]]


class Talk:
    """Ends after `turns` actions; says `texts` in turn; reward: actions by turns."""

    turns = 3
    texts: Sequence[Any] = ("go on",)

    def __init__(self) -> None:
        self.reward = 0.0
        self.alive = True
        self.actions: list[str] = []

    def say(self) -> Any:
        return self.texts[len(self.actions) % len(self.texts)]

    def reset(self, seed: str) -> tuple[Any, Any]:
        return self, self.say()

    def step(self, action: str) -> tuple[Any, Any]:
        self.actions.append(action)
        self.reward = len(self.actions) / self.turns
        self.alive = len(self.actions) < self.turns
        return self, self.say()


def env(base: type = Talk, **attributes: Any) -> Any:
    """A class like `base`, with these attributes."""
    return type(base.__name__, (base,), attributes)


def asynced(cls: Any) -> Any:
    """The asynchronous twin of an environment class."""

    async def reset(self: Any, seed: str) -> Any:
        await asyncio.sleep(0)
        return cls.reset(self, seed)

    async def step(self: Any, action: str) -> Any:
        await asyncio.sleep(0)
        return cls.step(self, action)

    return env(cls, reset=reset, step=step)


# The limit of what hangs, where others must not reach it: longer than a busy machine keeps anything
# from its turn.
LIMIT_S = 6.0

# Minutes instead of seconds.
SOAK = pytest.mark.skipif(
    "ABUT_SOAK" not in os.environ, reason="ABUT_SOAK is unset: make test-soak"
)
BOTH = pytest.mark.parametrize("twin", [lambda cls: cls, asynced], ids=["sync", "async"])


class Recording(ScriptedSampler):
    """Keeps each sample beside its request."""

    def __init__(self, script: Script, **kwargs: Any) -> None:
        super().__init__(script, **kwargs)
        self.calls: list[tuple[SampleRequest, Sample]] = []

    async def sample(self, request: SampleRequest) -> Sample:
        sample = await super().sample(request)
        self.calls.append((request, sample))
        return sample


class Batched(Recording):
    """The same, in batches on the thread that called the engine."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.sample_one = super().sample
        self.batches: list[int] = []
        self.threads: set[str] = set()

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        self.batches.append(len(requests))
        self.threads.add(threading.current_thread().name)
        return [asyncio.run(self.sample_one(request)) for request in requests]


@dataclass
class Played:
    engine: Engine
    rollouts: list[Rollout]
    sampler: Any

    @property
    def one(self) -> Rollout:
        (rollout,) = self.rollouts
        return rollout

    def calls(self, rollout: Rollout) -> list[tuple[SampleRequest, Sample]]:
        return [call for call in self.sampler.calls if call[0].rollout_id == rollout.rollout_id]


class Stage:
    """Plays rollouts with one tokenizer and processor."""

    def __init__(self, tokenizer: Any, processor: Any) -> None:
        self.tokenizer = tokenizer
        self.processor = processor

    def says(self, text: str = "yes", *, stop: bool = True) -> Script:
        ids = [*self.tokenizer.encode(text), *[self.processor.close_token_id] * stop]
        return lambda request: ids

    def engine(
        self,
        sampler: Any,
        *,
        completion: int | None = 2000,
        context: int | None = None,
        stop_token_ids: Sequence[int] = (),
        progress: bool = False,
        **config: Any,
    ) -> Engine:
        return Engine(
            self.tokenizer,
            self.processor,
            sampler,
            RolloutConfig(max_completion_tokens=completion, max_context_tokens=context, **config),
            stop_token_ids=stop_token_ids,
            progress=progress,
        )

    def tasks(self, envs: Sequence[Any], **task: Any) -> list[RolloutTask]:
        task = {"messages": [], "seed": "seed", "episode_seed": 7} | task
        return [RolloutTask(i, f"r{i}", cls, **task) for i, cls in enumerate(envs)]

    def play(
        self,
        *envs: Any,
        script: str | Script = "yes",
        sampler: Any = None,
        task: dict[str, Any] | None = None,
        **options: Any,
    ) -> Played:
        sampler = sampler or Recording(self.says(script) if isinstance(script, str) else script)
        engine = self.engine(sampler, **options)
        tasks = self.tasks(envs or [Talk], **task or {})
        return Played(engine, engine.run(tasks), sampler)

    def row_text(self, rollout: Rollout) -> str:
        return str(self.tokenizer.decode(row(rollout)))


def row(rollout: Rollout) -> list[int]:
    assert rollout.columns is not None, rollout.error
    return [*rollout.columns.prompt_ids.tolist(), *rollout.columns.completion_ids.tolist()]


def check_exact(columns: Any, calls: Sequence[tuple[SampleRequest, Sample]]) -> None:
    """Each request is a prefix of the row; each sampled token is there once, with its logprob."""
    start = len(columns.prompt_ids)
    ids = np.concatenate([columns.prompt_ids, columns.completion_ids])
    logprobs, mask = np.zeros(len(ids), np.float32), np.zeros(len(ids), np.uint8)
    end = 0
    for request, sample in calls:
        if not len(sample.ids):
            assert request.prompt_ids[: len(ids)].tolist() == ids.tolist()
            continue
        frozen = len(request.prompt_ids)
        assert request.prompt_ids.tolist() == ids[:frozen].tolist()
        assert frozen >= end
        end = frozen + len(sample.ids)
        assert ids[frozen:end].tolist() == sample.ids.tolist()
        logprobs[frozen:end], mask[frozen:end] = sample.logprobs, 1
    assert end == len(ids), "a row ends on a sampled token"
    assert start == len(calls[0][0].prompt_ids)
    assert columns.env_mask.tolist() == mask[start:].tolist()
    assert columns.logprobs.tolist() == logprobs[start:].tolist()


def shifted(columns: Any, *, ids: int = 0, logprobs: int = 0, env_mask: int = 0) -> Any:
    """The same columns with one of them rotated: what every checker must notice."""
    return SimpleNamespace(  # `Columns` would refuse it
        prompt_ids=columns.prompt_ids,
        completion_ids=np.roll(columns.completion_ids, ids),
        logprobs=np.roll(columns.logprobs, logprobs),
        env_mask=np.roll(columns.env_mask, env_mask),
    )


def assert_done(rollout: Rollout) -> None:
    assert rollout.error is None
    assert rollout.stop_reason == "env_done"


_EARLIER: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def overlook_earlier() -> None:
    """Count no thread that a test before has left, to the garbage collector or with an engine.

    Those that are lent belong to whoever has them now.
    """
    left = [t for t in threading.enumerate() if t.name.startswith("abut-")]
    left = [t for t in left if not t.name.startswith("abut-thread")]
    if left:
        gc.collect()
    _EARLIER.update(left)


def own_threads() -> list[str]:
    threads = [t for t in threading.enumerate() if t not in _EARLIER]
    return [t.name for t in threads if t.name.startswith("abut-")]


def eventually(holds: Callable[[], bool], within_s: float = 60) -> bool:
    """Whether it holds at last: for what another thread finishes after a call returned."""
    deadline = time.monotonic() + within_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.002)
    return holds()
