"""`GRPOTrainer` with vLLM on rows with images, each compared with an independent forward."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOConfig

from abut import RolloutConfig
from abut.template import ImageProcessor
from abut.trl import env_reward, make_rollout_func
from tests.kit.training.example_run import CPU
from tests.kit.training.image_run import SHOWN, Squares, Watched
from tests.kit.training.served_vision import Served, served
from tests.kit.training.vision import own_logprobs

STEPS = 3


class Against(Watched):
    """Compares the engine's logprobs with a forward in which media tokens are not drawn either."""

    def _compare(self, model: Any, row: Any, logps: Any) -> tuple[float, float]:
        from_own, _ = super()._compare(model, row, logps)
        columns = row.columns
        ids = np.concatenate([columns.prompt_ids, columns.completion_ids])
        pictures = [span.image.to_pil() for span in row.images]
        never = ImageProcessor(self.processing_class).never_token_ids
        own = own_logprobs(model, self.processing_class, ids, pictures, never=never)
        drawn = columns.env_mask == 1
        engine = torch.from_numpy(np.array(columns.logprobs[drawn]))
        return from_own, float((own[-len(drawn) :][drawn] - engine).abs().max())


def qwen_for_trl(folder: Path) -> Served:
    """Make Qwen2.5-VL in a folder from which TRL makes its engine."""
    one = served("qwen2_5_vl", folder)
    one.model.name_or_path = str(one.folder)
    return one


def an_image_trainer(served: Served, out: Path, **args: Any) -> Any:
    settings = {
        **CPU,
        "output_dir": str(out),
        "use_vllm": True,
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "num_generations": 2,
        "max_completion_length": 700,
        "learning_rate": 1e-2,
        "gradient_checkpointing": False,
        "logging_steps": 1,
    }
    trainer = Against(
        model=served.model,
        args=GRPOConfig(**settings | args),
        processing_class=served.family.processor,
        reward_funcs=env_reward,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in SHOWN]),
        rollout_func=make_rollout_func(
            Squares, config=RolloutConfig(max_turn_tokens=4, max_turns=3, retries=0)
        ),
    )
    trainer.compared = []
    return trainer


def check_images(trainer: Any, *, synced: bool = True, close: float = 1e-5) -> None:
    """TRL and vLLM say what an independent forward says, at each step."""
    compared = trainer.compared
    assert {c.images for c in compared} == {0, 1, 2, 3}
    assert max(c.from_own for c in compared) < close
    of_steps = np.array_split([c.from_engine for c in compared], STEPS)
    assert of_steps[0].max() < close
    later = np.concatenate(of_steps[1:])
    if synced:
        assert later.max() < close
    else:
        assert min(step.max() for step in of_steps[1:]) > 1e-3
