"""One rank of a `GRPOTrainer` whose vLLM is tensor-parallel over all ranks."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.kit.training.example_run import training_on
from tests.kit.training.ranks import found_at
from tests.kit.training.vllm_training import (
    DIFFERENCE,
    Vowels,
    a_trainer,
    exact_engines,
)

STEPS = 4


class SlowVowels(Vowels):
    def step(self, action: str) -> Any:
        time.sleep(0.05)
        return super().step(action)


def main(folder: Path, model: str, device: str = "cpu") -> None:
    rank = os.environ["RANK"]
    exact_engines(pytest.MonkeyPatch(), device)
    trainer, outputs = a_trainer(
        AutoModelForCausalLM.from_pretrained(model),
        AutoTokenizer.from_pretrained(model),
        folder / "out",
        env=SlowVowels if rank == "1" else Vowels,
        vllm_mode="colocate",
        vllm_tensor_parallel_size=2,
        vllm_max_model_length=512,
        max_steps=STEPS,
        **training_on(device),
    )
    engine = trainer.vllm_generation.llm.llm_engine
    admitted: list[tuple[str, list[int]]] = []
    add_request = engine.add_request

    def add(name: str, prompt: Any, params: Any) -> Any:
        admitted.append((name, prompt["prompt_token_ids"]))
        return add_request(name, prompt, params)

    engine.add_request = add
    trainer.train()
    log = [entry[DIFFERENCE] for entry in trainer.state.log_history if DIFFERENCE in entry]
    said = {
        "differences": log,
        "admitted": admitted,
        "turns": [turns for output in outputs for turns in output["num_turns"]],
        "errors": [error for output in outputs for error in output["error"]],
        "is_empty": not engine.has_unfinished_requests(),
    }
    found_at(folder, int(rank)).write_text(json.dumps(said))
