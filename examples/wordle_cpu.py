"""Train a small model on a game like Wordle, without a GPU, a network or a server.

    pip install 'abut[trl]'
    python wordle_cpu.py

The model has random weights. In 60 steps (two minutes) its mean reward rises from 0.03 to 0.12: it
learns that a guess has five letters, and a word that often scores. It is too small to understand
the hints; wordle_grpo.py trains larger models.
"""

import argparse
import functools
import statistics
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from abut import RolloutConfig
from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.envs import WordGuessEnv
from abut.trl import env_reward, make_rollout_func

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-steps", type=int, default=60, help="training steps of 64 games")
    given = parser.parse_args()
    recipe = DemoRecipe(steps=given.max_steps, entropy_coef=0.01, max_completion_tokens=512)
    tokenizer = load_demo_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=build_demo_model(tokenizer, recipe),
            reward_funcs=env_reward,
            args=GRPOConfig(folder, logging_steps=1, **recipe.grpo_arguments()),
            train_dataset=Dataset.from_dict({"prompt": ["Guess the word"] * 1024}),
            processing_class=tokenizer,
            rollout_func=make_rollout_func(
                functools.partial(WordGuessEnv, guesses=3),
                config=RolloutConfig(max_turns=3, max_turn_tokens=4),
            ),
        )
        trainer.train()
    rewards = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    for step in range(0, len(rewards), 10):
        print(f"step {step + 1:>4}: mean reward {statistics.fmean(rewards[step : step + 10]):.3f}")
