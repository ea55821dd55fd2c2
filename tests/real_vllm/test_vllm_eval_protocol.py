"""Eval Protocol's helper with a real vLLM, in both modes: rows are what the engine sampled."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("eval_protocol")

from abut.eval_protocol import create_openenv_vllm_rollout_func
from abut.trl import env_reward
from tests.kit.servers.vllm_server import VLLMServer
from tests.kit.training.example_run import CPU
from tests.kit.training.vllm_training import (
    DIFFERENCE,
    exact_engine,
    reload_weights,
    send,
    shut_down,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL, vLLM and litellm among themselves
STEPS = 3


class Vowels:
    """Three steps, worth their share of vowels."""

    steps = 0

    def reset(self) -> Any:
        return SimpleNamespace(observation="begin", reward=None, done=False)

    def step(self, action: str) -> Any:
        self.steps += 1
        reward = sum(c in "aeiou" for c in action) / max(len(action), 1)
        return SimpleNamespace(observation="more", reward=reward, done=self.steps == 3)

    def close(self) -> None: ...


def a_trainer(model: Any, hf_tokenizer: Any, out: Path, **args: Any) -> tuple[Any, list[Any]]:
    """A trainer on the helper, and a list that gets its batches."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    outputs: list[Any] = []
    rollout_func = create_openenv_vllm_rollout_func(
        Vowels,
        lambda observation, step, history: f"{step}: {observation}",
        lambda text: text,
        completion_params={"max_tokens": 6, "temperature": 0.0},
    )

    def keep(prompts: Any, trainer: Any) -> Any:
        outputs.append(rollout_func(prompts, trainer))
        return dict(outputs[-1])

    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            **CPU,
            output_dir=str(out),
            use_vllm=True,
            max_steps=STEPS,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=300,
            learning_rate=1e-3,
            logging_steps=1,
            **args,
        ),
        processing_class=hf_tokenizer,
        reward_funcs=env_reward,
        train_dataset=Dataset.from_list([{"prompt": "go"}] * 16),
        rollout_func=keep,
    )
    return trainer, outputs


def check(trainer: Any, outputs: list[Any]) -> None:
    """TRL computes what was sampled, at each step, and each episode has its rewards."""
    differences = [log[DIFFERENCE] for log in trainer.state.log_history if DIFFERENCE in log]
    assert len(differences) == len(outputs) == STEPS
    assert max(differences) < 1e-5, differences
    for output in outputs:
        assert output["error"] == [None] * 8
        assert output["num_turns"] == [3] * 8
        assert output["step_rewards"] == output["env_reward"]
        assert all(0.05 < np.mean(mask) < 0.95 for mask in output["env_mask"])
    # The trainer's temperature: at that of completion_params all would be the same.
    assert len({tuple(ids) for ids in outputs[0]["completion_ids"]}) > 4


def test_the_helper_with_a_server(
    own_server: VLLMServer, tiny_model: Any, hf_tokenizer: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from trl.generation.vllm_client import VLLMClient

    def update(client: Any, metadata: Any, params: Any) -> None:
        send(own_server, tmp_path, params)

    model = tiny_model(seed=3, tie_word_embeddings=False, head_dim=32)
    monkeypatch.setattr(VLLMClient, "init_communicator", lambda client, **_: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", update)
    out = tmp_path / "out"
    settings = {"vllm_mode": "server", "vllm_server_base_url": own_server.url}
    trainer, outputs = a_trainer(model, hf_tokenizer, out, **settings)
    trainer.train()
    check(trainer, outputs)


def test_the_helper_with_vllm_in_the_process(
    model_folder: Path, hf_tokenizer: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    import trl.generation.vllm_generation as generation
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    monkeypatch.setattr(generation, "LLM", functools.partial(generation.LLM, **exact_engine()))
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    settings = {"vllm_mode": "colocate", "vllm_max_model_length": 1024}
    trainer, outputs = a_trainer(model, hf_tokenizer, tmp_path, **settings)
    generate = trainer.vllm_generation

    def sync(_: Any) -> None:
        reload_weights(generate.llm, generate._iter_named_params())

    monkeypatch.setattr(generation.VLLMGeneration, "sync_weights", sync)
    trainer.train()
    shut_down(generate.llm)
    check(trainer, outputs)
