"""One rank of two that distil from a teacher: the gradient of both together."""

import os
from pathlib import Path
from typing import Any

import torch
import trl
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import TrainerCallback

import abut.trl
from abut import Columns, RolloutConfig
from abut.rollout.rollout import Rollout
from tests.kit.stage.rollouts import Talk, env
from tests.kit.training.example_run import CPU
from tests.kit.training.ranks import leave
from tests.kit.training.row_oracle import divergences, flat_gradient, relative_error
from tests.kit.training.scripted_rows import float64_model


class Kept:
    """A recorder that keeps the rollouts of this rank."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []

    def write(self, rollout: Rollout, /, **extra: Any) -> None:
        self.rollouts.append(rollout)


def main(folder: Path) -> None:
    """Train one step; write down how far its gradient is from the independent one.

    Args:
        folder: for what is found.
    """
    rank = int(os.environ["RANK"])
    tokenizer, model = float64_model()
    teacher, kept, gradients = float64_model(seed=5)[1], Kept(), []
    trainer = abut.trl.DistillationTrainer(
        model=model,
        teacher_model=teacher,
        args=trl.DistillationConfig(
            str(folder),
            **CPU,
            max_steps=1,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_completion_length=64,
            max_grad_norm=0.0,
            gradient_checkpointing=False,
            logging_steps=1,
            beta=1.0,
            ddp_timeout=60,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["go"] * 16}),
        processing_class=tokenizer,
        rollout_func=abut.trl.make_rollout_func(
            env(Talk, turns=1 + 2 * rank),
            config=RolloutConfig(max_turn_tokens=5, retries=0),
            recorder=kept,
        ),
    )

    class Keep(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            gradients.append(flat_gradient(trainer.model))

    trainer.add_callback(Keep())
    trainer.train()
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    own = [{name: getattr(r.columns, name) for name in names} for r in kept.rollouts]
    of_ranks = [[Columns(**one) for one in each] for each in gather_object([own])]
    before = float64_model()[1]
    means = []
    for columns in of_ranks:
        each = [divergences(before, teacher, one, 1.0) for one in columns]
        means.append(torch.cat(each).mean())
    tokens = [sum(int(one.env_mask.sum()) for one in columns) for columns in of_ranks]
    whole = sum(mean * count for mean, count in zip(means, tokens, strict=True)) / sum(tokens)
    errors = []
    for loss in (whole, sum(means) / len(means)):
        before.zero_grad()
        loss.backward(retain_graph=True)
        errors.append(relative_error(gradients[0], flat_gradient(before)))
    leave(
        folder,
        {
            "model": type(trainer.model_wrapped).__name__,
            "tokens": tokens[rank],
            "error": errors[0],
            "control": errors[1],
            "mean_length": trainer.state.log_history[0]["completions/mean_length"],
        },
    )
