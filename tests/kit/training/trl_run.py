"""A real `GRPOTrainer` with a small model, which keeps what it got and what it made of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.rollout.config import RolloutConfig  # noqa: E402
from abut.samplers.transformers import TransformersSampler  # noqa: E402
from abut.trl import env_reward, make_rollout_func  # noqa: E402
from tests.kit.stage.rollouts import Talk  # noqa: E402
from tests.kit.training.example_run import CPU  # noqa: E402

CONFIG = RolloutConfig(max_turn_tokens=5, retries=0)


class Vowels(Talk):
    """Rewards vowels; the third environment of each eight cannot be used."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.broken = type(self).made % 8 == 2
        type(self).made += 1

    def step(self, action: str) -> Any:
        result = super().step(action)
        if self.broken and len(self.actions) == 2:
            raise ValueError("boom")
        self.reward = sum(c in "aeiou" for c in action) / max(len(action), 1) + len(action) / 64
        return result


class Columns(Talk):
    """Notes what `reset` got."""

    got: list[Any]

    def reset(self, seed: str, *, episode_seed: int, level: Any = 0) -> Any:
        self.got.append((seed, episode_seed, level))
        return super().reset(seed)


class Run:
    """Trains with TRL's own steps.

    Keeps the `prompts` and `outputs` of each call of the rollout_func, the dataset's rows of it
    (`inputs`), the `generated` that TRL's
    `_generate` made of it, the `batches` for the loss, and TRL's own logprobs (`recomputed`).
    """

    def __init__(
        self,
        hf_tokenizer: Any,
        model: Any,
        folder: Path,
        env: Any,
        *,
        reward_funcs: Any = env_reward,
        prompts: Sequence[Any] = ("go",) * 8,
        columns: dict[str, Sequence[Any]] | None = None,
        make: dict[str, Any] | None = None,
        peft_config: Any = None,
        **args: Any,
    ) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        self.outputs: list[Any] = []
        self.prompts: list[Any] = []
        self.inputs: list[Any] = []
        self.generated: list[Any] = []
        self.batches: list[Any] = []
        self.recomputed: list[Any] = []
        self.rollout_func = make_rollout_func(env, **{"config": CONFIG} | (make or {}))
        names = {"prompt": list(prompts)} | {k: list(v) for k, v in (columns or {}).items()}
        dataset = Dataset.from_list(
            [dict(zip(names, row, strict=True)) for row in zip(*names.values(), strict=True)]
        )
        settings = {
            **CPU,
            "output_dir": str(folder),
            "max_steps": 2,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 128,
            "logging_steps": 1,
            "learning_rate": 1e-3,
        }
        self.trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(**settings | args),
            processing_class=hf_tokenizer,
            reward_funcs=reward_funcs,
            train_dataset=dataset,
            eval_dataset=dataset,
            rollout_func=self._keep,
            peft_config=peft_config,
        )
        self._generate = self.trainer._generate
        self.trainer._generate = self._keep_generated
        self._score = self.trainer._generate_and_score_completions
        self.trainer._generate_and_score_completions = self._recompute

    def _keep(self, prompts: Any, trainer: Any) -> Any:
        self.prompts.append(prompts)
        self.outputs.append(self.rollout_func(prompts, trainer))
        return dict(self.outputs[-1])

    def _keep_generated(self, prompts: Any) -> Any:
        self.generated.append(self._generate(prompts))
        return self.generated[-1]

    def _recompute(self, inputs: Any) -> Any:
        self.inputs.append([dict(row) for row in inputs])
        batch = self._score(inputs)
        with torch.no_grad():
            logprobs = self.trainer._get_per_token_logps_and_entropies(
                self.trainer.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
                batch["completion_ids"].size(1),
            )[0]
        self.batches.append(batch)
        self.recomputed.append(logprobs)
        return batch

    def worst(self, roll: int = 0) -> float:
        """The largest difference between TRL's logprobs and ours, in nats."""
        most = 0.0
        for output, recomputed in zip(self.outputs, self.recomputed, strict=True):
            for row, theirs in enumerate(recomputed):
                mask = np.asarray(output["env_mask"][row], dtype=bool)
                ours = np.asarray(output["logprobs"][row])[mask]
                theirs_sampled = theirs[: len(mask)].cpu().numpy()[mask]
                if len(ours):
                    most = max(most, np.abs(np.roll(ours, roll) - theirs_sampled).max())
        return most


@contextmanager
def recorded_calls() -> Iterator[list[Any]]:
    """Each request to the model in this process beside its sample."""
    calls: list[Any] = []
    sample_batch = TransformersSampler.sample_batch

    def recording(self: Any, requests: Any) -> Any:
        samples = sample_batch(self, requests)
        calls.extend(zip(requests, samples, strict=True))
        return samples

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersSampler, "sample_batch", recording)
        yield calls


def a_trainer(hf_tokenizer: Any, **changes: Any) -> Any:
    """What a rollout_func reads of a trainer, and no more."""
    attributes = {
        "model": SimpleNamespace(
            training=True,
            config=SimpleNamespace(max_position_embeddings=1024),
            generation_config=SimpleNamespace(eos_token_id=[505, 503]),
        ),
        "processing_class": hf_tokenizer,
        "num_generations": 2,
        "num_generations_eval": 1,
        "accelerator": SimpleNamespace(process_index=0, num_processes=1),
        "state": SimpleNamespace(global_step=0, log_history=[]),
        "args": SimpleNamespace(disable_tqdm=True),
        "reward_funcs": [env_reward],
        "max_completion_length": 256,
        "loss_type": "dapo",
        "use_vllm": False,
    }
    return SimpleNamespace(**attributes | changes)


def user(content: str, **keys: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **keys}
