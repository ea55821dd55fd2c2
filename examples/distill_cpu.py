"""Distillation on a CPU: a student learns a game of three turns from a teacher, without a reward.

    pip install 'abut[trl]'
    python distill_cpu.py

The game is the one of `abut demo`: in each turn, copy a row of symbols. The teacher is the model of
the demo, which first learns the game with rewards. The student has a third of its parameters. The
student plays the game, and the teacher scores each of its tokens. Its reward is printed, but
training does not use it.
"""

import argparse
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import DistillationConfig, GRPOConfig

from abut import RolloutConfig
from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.trl import DistillationTrainer, GRPOTrainer, env_reward, make_rollout_func


class Rewards:
    """A recorder that keeps the reward of each rollout by step."""

    def __init__(self) -> None:
        self.by_step: dict[int, list[float]] = defaultdict(list)

    def write(self, rollout: Any, /, **extra: Any) -> None:
        self.by_step[extra["step"]].append(rollout.reward or 0.0)

    @property
    def means(self) -> list[float]:
        return [statistics.fmean(self.by_step[step]) for step in sorted(self.by_step)]


def trained_teacher(recipe: DemoRecipe, folder: str, **shared: Any) -> Any:
    """Return the demo's model, trained with rewards."""
    model = build_demo_model(shared["processing_class"], recipe)
    GRPOTrainer(
        model=model,
        reward_funcs=env_reward,
        args=GRPOConfig(folder, **recipe.grpo_arguments()),
        rollout_func=make_rollout_func(recipe.env, config=LIMITS),
        **shared,
    ).train()
    return model


def distilled(recipe: DemoRecipe, teacher: Any, folder: str, **shared: Any) -> Rewards:
    """Train a new student, and return its rewards."""
    rewards = Rewards()
    DistillationTrainer(
        model=build_demo_model(shared["processing_class"], recipe),
        teacher_model=teacher,
        args=DistillationConfig(
            folder, seed=recipe.seed, max_steps=recipe.steps, learning_rate=recipe.learning_rate,
            beta=0.5, per_device_train_batch_size=recipe.batch, gradient_accumulation_steps=1,
            max_completion_length=recipe.max_completion_tokens, lr_scheduler_type="constant",
            gradient_checkpointing=False, use_cpu=True, bf16=False, save_strategy="no",
            report_to="none",
        ),
        rollout_func=make_rollout_func(recipe.env, config=LIMITS, recorder=rewards),
        **shared,
    ).train()  # fmt: skip
    return rewards


LIMITS = RolloutConfig(max_turns=3, max_turn_tokens=4)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-steps", type=int, default=80, help="training steps of the student")
    parser.add_argument("--teacher-steps", type=int, default=120)
    parser.add_argument(
        "--teacher", type=Path, help="folder to load a teacher from, or to save it to"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the student")
    given = parser.parse_args()
    torch.set_num_threads(1)  # on matrices this small, threads only wait for each other
    tokenizer = load_demo_tokenizer()
    rows = Dataset.from_dict({"prompt": ["copy"] * 256})
    shared = {"processing_class": tokenizer, "train_dataset": rows}
    with tempfile.TemporaryDirectory() as folder:
        if given.teacher is not None and (given.teacher / "config.json").exists():
            teacher = AutoModelForCausalLM.from_pretrained(given.teacher)
        else:
            teacher = trained_teacher(DemoRecipe(steps=given.teacher_steps), folder, **shared)
            if given.teacher is not None:
                teacher.save_pretrained(given.teacher)
        recipe = DemoRecipe(steps=given.max_steps, seed=given.seed, hidden_size=64)
        rewards = distilled(recipe, teacher, folder, **shared).means
    for step in range(0, len(rewards), 10):
        print(f"step {step + 1:>4}: mean reward {statistics.fmean(rewards[step : step + 10]):.3f}")
