"""`GRPOTrainer` with vLLM: what the tests of both modes train, on a CPU or a GPU."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abut.rollout.config import RolloutConfig
from abut.trl import env_reward, make_rollout_func
from tests.kit.stage.rollouts import Talk
from tests.kit.training.example_run import CPU

DIFFERENCE = "sampling/sampling_logp_difference/mean"
STEPS = 12
# In so many steps the reward rises, by 0.1 at the least.
LEARNING = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 16,
    "num_generations": 8,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "constant",
}


class Vowels(Talk):
    """Rewards vowels: something that a few steps of training change."""

    def step(self, action: str) -> Any:
        result = super().step(action)
        self.reward = sum(c in "aeiou" for c in action) / max(len(action), 1) + len(action) / 64
        return result


def exact_engine() -> dict[str, Any]:
    """Arguments for `vllm.LLM`; float32 and eager: logprobs agree with transformers'."""
    return {
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 2**26,
        "block_size": 32,
    }


def exact_engines(patch: pytest.MonkeyPatch, device: str = "cpu") -> None:
    """Let TRL make exact engines in this process.

    On a GPU TRL gives them their weights. On the CPU its way does not reach the packed weights.
    """
    import trl.generation.vllm_generation as generation

    patch.setenv("TORCHDYNAMO_DISABLE", "1")
    patch.setenv("VLLM_NO_USAGE_STATS", "1")
    patch.setattr(generation, "LLM", functools.partial(generation.LLM, **exact_engine()))
    if device == "cpu":
        patch.setattr(
            generation.VLLMGeneration,
            "sync_weights",
            lambda self: reload_weights(self.llm, self._iter_named_params()),
        )


def reload_weights(llm: Any, parameters: Any) -> None:
    """Give an engine weights. TRL writes them past what vLLM packs for the CPU; vLLM does not."""
    worker = llm.llm_engine.model_executor.driver_worker
    worker.reload_weights(weights_iterator=list(parameters))
    llm.reset_prefix_cache()


def shut_down(llm: Any) -> None:
    """End an engine now. The garbage collector ends it later, with the groups of the next one."""
    llm.llm_engine.engine_core.shutdown()


def a_trainer(
    model: Any,
    hf_tokenizer: Any,
    out: Path,
    *,
    env: type = Vowels,
    peft_config: Any = None,
    **args: Any,
) -> tuple[Any, list[Any]]:
    """A trainer of multi-turn rollouts, and a list that gets what each batch of them is."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    outputs: list[Any] = []
    rollout_func = make_rollout_func(
        env, config=RolloutConfig(max_turns=3, max_turn_tokens=6, max_completion_tokens=200)
    )

    def keep(prompts: Any, trainer: Any) -> Any:
        outputs.append(rollout_func(prompts, trainer))
        return dict(outputs[-1])

    fixed = {
        **CPU,
        "output_dir": str(out),
        "use_vllm": True,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 200,
        "temperature": 0.8,
        "learning_rate": 1e-3,
        "logging_steps": 1,
    }
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(**fixed | args),
        processing_class=hf_tokenizer,
        reward_funcs=env_reward,
        train_dataset=Dataset.from_list([{"prompt": "begin"}] * 16),
        rollout_func=keep,
        peft_config=peft_config,
    )
    return trainer, outputs


def check_learning(trainer: Any, outputs: list[Any], *, synced: bool, close: float = 1e-5) -> None:
    """TRL computes what was sampled at each step, and learns; not where vLLM got no weights.

    Args:
        trainer: has trained.
        outputs: of its batches.
        synced: whether vLLM got the weights.
        close: the largest difference of logprobs that rounding explains, in nats.
    """
    logs = [log for log in trainer.state.log_history if DIFFERENCE in log]
    differences = [log[DIFFERENCE] for log in logs]
    assert len(differences) == len(outputs) == STEPS
    assert all(turns == 3 for output in outputs for turns in output["num_turns"])
    sampled = [np.sum(mask) / len(mask) for o in outputs for mask in o["env_mask"]]
    assert 0.1 < np.mean(sampled) < 0.9, "tokens of the environment stand between the turns"
    assert differences[0] < close
    if not synced:
        assert min(differences[1:]) > 1e-3, differences
        return
    assert max(differences) < close, differences
    rewards = [log["reward"] for log in logs]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.1, rewards


def send(server: Any, folder: Path, params: Any) -> None:
    from safetensors.torch import save_file

    # Copies: TRL takes an adapter out of the weights again once it has given the last of them.
    copies = {name: p.detach().clone() for name, p in params}
    save_file(copies, folder / "model.safetensors")
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    server.post("/collective_rpc", json.dumps(rpc).encode())


def check_shared_engine(said: list[Any], steps: int, *, close: float = 1e-5) -> None:
    """Both ranks of `ranks/tensor_parallel.py` sampled exactly, with one model."""
    for rank in said:
        assert len(rank["differences"]) == steps
        assert max(rank["differences"]) < close, rank["differences"]
        assert rank["errors"] == [None] * 8 * steps
        assert rank["turns"] == [3] * 8 * steps
        assert rank["is_empty"]
    assert said[0]["admitted"] == said[1]["admitted"]
    assert len(said[0]["admitted"]) == 2 * 8 * 3 * steps, "each rank has the turns of both"
