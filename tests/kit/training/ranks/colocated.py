"""One rank of a tensor-parallel group, over gloo and with an engine that only counts.

It plays one batch after the other, and writes down what became of them after each, since the last
batch ends with the death of rank 1.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from transformers import AutoTokenizer

import abut
from abut.errors import AbutError
from abut.samplers.vllm_colocate import VLLMColocateSampler
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.stage import fake_vllm
from tests.kit.stage.rollouts import LIMIT_S, Stage, Talk, check_exact, env
from tests.kit.stage.streams import kept_answers
from tests.kit.training.ranks import found_at


class Slow(Talk):
    def step(self, action: str) -> Any:
        time.sleep(0.05)
        return super().step(action)


class Waiting(Talk):
    """Its second step ends when all turns of the other rank are with the engine."""

    def step(self, action: str) -> Any:
        if self.actions:
            admitted = ENGINES[-1].admitted
            while sum(id_.startswith("abut-0-") for id_, _ in admitted) < 20:
                time.sleep(0.001)
        return super().step(action)


class Broken(Talk):
    def step(self, action: str) -> Any:
        raise ValueError("boom")


class Deadly(Talk):
    def step(self, action: str) -> Any:
        time.sleep(0.2)
        os._exit(3)


ENGINES: list[Any] = []

# The environments of each rank, and what else is special about the batch.
BATCHES: dict[str, tuple[list[list[Any]], dict[str, Any]]] = {
    "even": ([[Talk] * 3, [Talk] * 3], {}),
    "one rank has slow environments": (
        [[env(Talk, turns=5)] * 4, [env(Waiting, turns=4)] * 2],
        {},
    ),
    "one rank has a rollout that fails": ([[Talk] * 2, [Broken, Talk]], {"on_failure": "raise"}),
    "after a batch that failed": ([[Talk] * 2, [Talk] * 2], {}),
    "one rank gives a turn up": (
        [[env(Slow, turns=8)] * 2, [Talk]],
        {"max_turn_tokens": None, "completion": 10**6},
    ),
    "one rank cannot step": ([[Talk] * 2, [Talk] * 2], {}),
    "one rank dies": ([[env(Slow, turns=8)] * 2, [Deadly]], {}),
}


def play(stage: Stage, name: str, rank: int, ranks: int) -> dict[str, Any]:
    envs, options = BATCHES[name]
    llm = fake_vllm.llm(ranks=ranks, max_model_len=10**7)
    engine = llm.llm_engine
    ENGINES.append(engine)
    if name == "one rank cannot step" and rank == 1:
        engine.fails_at = 4
    if name == "one rank gives a turn up":
        options = options | {"turn_timeout_s": LIMIT_S if rank else 600, "max_failed_frac": 1.0}
        options |= {"max_turn_tokens": None if rank else 6}
    sampler: Any = VLLMColocateSampler(llm)
    said: dict[str, Any] = {"error": None}
    options = {"max_turn_tokens": 6, "retries": 0} | options
    with pytest.MonkeyPatch.context() as monkeypatch:
        sampler.calls = kept_answers(monkeypatch)
        try:
            told = stage.play(*envs[rank], sampler=sampler, **options)
        except (AbutError, RuntimeError) as error:
            said["error"] = f"{type(error).__name__}: {error}"
        else:
            for rollout in told.rollouts:
                if not rollout.failed:
                    check_exact(rollout.columns, told.calls(rollout))
            said["failed"] = [rollout.error for rollout in told.rollouts if rollout.failed]
    return said | {
        "admitted": engine.admitted,
        "aborted": engine.aborted,
        "running": list(engine.running),
        "steps": engine.steps,
    }


def main(folder: Path) -> None:
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    fake_vllm.install(sys.modules, torch.distributed.group.WORLD)  # type: ignore[arg-type]
    hf_tokenizer = AutoTokenizer.from_pretrained(DEMO_ASSETS)
    stage = Stage(
        abut.Tokenizer.from_pretrained(hf_tokenizer), abut.ChatTemplateProcessor(hf_tokenizer)
    )
    said: dict[str, Any] = {}
    for name in BATCHES:
        said[name] = play(stage, name, rank, ranks)
        found_at(folder, rank).write_text(json.dumps(said))
        if name != "one rank dies":
            torch.distributed.barrier()
    os._exit(0)  # gloo would wait for the rank that is dead
