"""Train with an environment of your own: guess a digit, with the hints higher and lower.

    pip install 'abut[trl]'
    python custom_env_grpo.py

Runs without a GPU and without a network, with a small model that has random weights. The three
steps only show that everything works together. For real training, use your own model and remove the
CPU settings.
"""

import argparse
import random
import re
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from abut import RolloutConfig
from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.trl import env_reward, make_rollout_func

if __name__ == "__main__":  # --help prints the text above
    formatter = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=formatter).parse_args()


class GuessTheDigit:
    """The reward is 1.0 for a right first guess, 0.5 for a right second guess, and so on."""

    def __init__(self):
        self.reward, self.alive, self.worth = 0.0, True, 1.0

    def reset(self, seed, *, episode_seed):
        self.secret = random.Random(episode_seed).choice("0123456789")  # the same for a whole group
        return self, "I think of a digit. Which?"

    def step(self, action):
        guess = re.search("[0-9]", action)
        if guess and guess[0] == self.secret:
            self.reward, self.alive = self.worth, False
            return self, "Right."
        self.worth /= 2
        if guess is None:
            return self, "That is not a digit."
        return self, "Higher." if guess[0] < self.secret else "Lower."


if __name__ == "__main__":
    tokenizer, cpu = load_demo_tokenizer(), {"use_cpu": True, "bf16": False}
    limits = RolloutConfig(max_turns=4, max_turn_tokens=8)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=build_demo_model(tokenizer, DemoRecipe()),
            processing_class=tokenizer,
            reward_funcs=env_reward,
            args=GRPOConfig(folder, max_steps=3, logging_steps=1, report_to="none", **cpu),
            train_dataset=Dataset.from_dict({"prompt": ["play"] * 16}),
            rollout_func=make_rollout_func(GuessTheDigit, config=limits),
        )
        trainer.train()
    for log in trainer.state.log_history[:-1]:
        print(f"step {log['step']}: mean reward {log['reward']:.3f}")
