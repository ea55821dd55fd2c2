"""Train a small model on a game like Wordle with three rewards, without a GPU, network or server.

    pip install 'abut[trl]'
    python wordle_rewards_cpu.py

Besides its reward, the game returns the share of letters of the last guess that are in place
(`position`), and the share of answers that were words of five letters (`format`). Each is a reward
function with its own weight. A hand-written `rollout_func` returns such columns itself; here they
are the `extras` of an environment. `game/format` has a slash, so it is also a metric.
"""

import argparse
import functools
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from abut import RolloutConfig
from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.envs import WordGuessEnv
from abut.envs.built_in import feedback, parse_guess
from abut.trl import env_reward, make_rollout_func, scored_only


class JudgedWords(WordGuessEnv):
    """The built-in game, which also judges each answer."""

    def reset(self, seed, *, episode_seed=0):
        self.answers, self.words = 0, 0
        return super().reset(seed, episode_seed=episode_seed)

    def step(self, action):
        guess = parse_guess(action)
        marks = feedback(guess, self.secret) if guess else []
        self.answers, self.words = self.answers + 1, self.words + bool(guess)
        share = self.words / self.answers
        self.extras = {"position": marks.count("G") / 5, "format": share, "game/format": share}
        return super().step(action)


@scored_only
def position_reward(completions, position, **columns):
    """Reward letters of the last guess that are in place."""
    return position


@scored_only
def format_reward(completions, format, **columns):
    """Reward answers that are words of five letters."""
    return format


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-steps", type=int, default=60, help="training steps of 64 games")
    given = parser.parse_args()
    recipe = DemoRecipe(steps=given.max_steps, entropy_coef=0.01, max_completion_tokens=512)
    arguments = recipe.grpo_arguments() | {"reward_weights": [1.0, 0.5, 0.2]}
    tokenizer = load_demo_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=build_demo_model(tokenizer, recipe),
            reward_funcs=[env_reward, position_reward, format_reward],
            args=GRPOConfig(folder, logging_steps=1, **arguments),
            train_dataset=Dataset.from_dict({"prompt": ["Guess the word"] * 1024}),
            processing_class=tokenizer,
            rollout_func=make_rollout_func(
                functools.partial(JudgedWords, guesses=3),
                config=RolloutConfig(max_turns=3, max_turn_tokens=4),
            ),
        )
        trainer.train()
    logs = [log for log in trainer.state.log_history if "reward" in log]
    for step in range(0, len(logs), 10):
        said = " ".join(
            f"{name} {logs[step][f'rewards/{name}_reward/mean']:.3f}"
            for name in ("env", "position", "format")
        )
        print(f"step {step + 1:>4}: {said}")
