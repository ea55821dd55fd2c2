"""Your own environment under GRPOTrainer: guess the digit, told higher or lower.

    python examples/custom_env_grpo.py

Needs `pip install 'abut[trl]'` and no network: the model is a random one of half a million
parameters. It takes three steps to show the plumbing; put in a model of yours to learn something.
"""

import random
import re
import tempfile
from typing import Self

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from abut import RolloutConfig
from abut.demo.model import build_demo_model, load_demo_tokenizer
from abut.demo.recipe import DemoRecipe
from abut.trl import env_reward, make_rollout_func


class GuessTheDigit:
    """`reward` is 1.0 for the right digit at once, half of it one guess later, and so on."""

    def __init__(self) -> None:
        self.reward = 0.0
        self.alive = True
        self._worth = 1.0
        self._secret = 0

    def reset(self, seed: str, *, episode_seed: int = 0) -> tuple[Self, str]:
        """Think of a digit: the same for all rollouts of a group."""
        self._secret = random.Random(episode_seed).randrange(10)
        return self, "I think of a digit. Which?"

    def step(self, action: str) -> tuple[Self, str]:
        """Compare the first digit of the answer."""
        digit = re.search(r"[0-9]", action)
        if digit is None:
            self._worth /= 2
            return self, "That is no digit."
        guess = int(digit[0])
        if guess == self._secret:
            self.reward, self.alive = self._worth, False
            return self, "Right."
        self._worth /= 2
        return self, "Higher." if guess < self._secret else "Lower."


def main() -> None:
    """Train for three steps and print the reward of each."""
    tokenizer = load_demo_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=build_demo_model(tokenizer, DemoRecipe()),
            processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"prompt": ["play"] * 16}),
            reward_funcs=env_reward,
            rollout_func=make_rollout_func(
                GuessTheDigit, config=RolloutConfig(max_turns=4, max_turn_tokens=8)
            ),
            args=GRPOConfig(
                output_dir=folder,
                max_steps=3,
                per_device_train_batch_size=16,
                num_generations=8,
                steps_per_generation=1,
                max_completion_length=160,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
            ),
        )
        trainer.train()
    for log in trainer.state.log_history:
        if "reward" in log:
            turns = log["rollout/turns/mean"]
            print(f"step {log['step']}: mean reward {log['reward']:.3f}, {turns:.1f} turns")


if __name__ == "__main__":
    main()
