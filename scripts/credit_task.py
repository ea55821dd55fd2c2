"""Measure credit by turn on a small task: `docs/how-to/credit_task.json` and its picture.

    python -m scripts.credit_task docs/how-to/credit_task.json docs/how-to/credit_task.svg

A rollout has six turns. The reward of each of the first two is the share of vowels in what the
policy says. The rewards of the last four are random. A model with random weights is trained with
one advantage per rollout (GRPO), and with the returns of turns. The curves show the reward of the
first two turns, because the other rewards cannot be learnt.

The task, its numbers and the three methods were fixed before the first run and never changed.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from scripts.draw_curves import picture

PAID_TURNS, CHANCE_TURNS = 2, 4
CHANCE = 0.5
"""The standard deviation of a random reward. The other rewards are between 0 and 1."""
STEPS, SEEDS = 40, 5
LAST = 10
"""The table has the mean of this many last steps."""


class PaidEarly:
    """Rewards vowels in two turns; later rewards are random."""

    _begun: ClassVar[Counter[int]] = Counter()

    def reset(self, seed: str, *, episode_seed: int) -> Any:
        """Begin an episode, with its own random rewards even if its group shares `episode_seed`."""
        self._begun[episode_seed] += 1
        self._chance = random.Random(f"{episode_seed} {self._begun[episode_seed]}")
        self.turn, self.reward, self.alive = 0, 0.0, True
        return self, "say"

    def step(self, action: str) -> Any:
        """Set `reward` to the reward of this turn, not to a sum."""
        said = [c for c in action.casefold() if c.isalpha()]
        if self.turn < PAID_TURNS:
            self.reward = sum(c in "aeiou" for c in said) / len(said) if said else 0.0
        else:
            self.reward = self._chance.gauss(0.0, CHANCE)
        self.turn += 1
        self.alive = self.turn < PAID_TURNS + CHANCE_TURNS
        return self, "say"


def early(env_step_rewards: list[list[float]], **_: Any) -> list[float]:
    """Return the mean reward of the learnable turns; only the curve uses it."""
    return [fmean(rewards[:PAID_TURNS]) for rewards in env_step_rewards]


def curve(credit: Any, seed: int) -> list[float]:
    """Train once, and return the reward of the first two turns at each step."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig

    from abut import RolloutConfig
    from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
    from abut.trl import GRPOTrainer, env_reward, make_rollout_func

    torch.set_num_threads(1)
    PaidEarly._begun.clear()
    recipe = DemoRecipe(seed=seed, steps=STEPS, entropy_coef=0.0, max_completion_tokens=256)
    tokenizer = load_demo_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=build_demo_model(tokenizer, recipe),
            processing_class=tokenizer,
            reward_funcs=[env_reward, early],
            args=GRPOConfig(
                folder,
                logging_steps=1,
                disable_tqdm=True,
                reward_weights=[1.0, 0.0],
                **recipe.grpo_arguments(),
            ),
            train_dataset=Dataset.from_dict({"prompt": ["say"] * recipe.rows}),
            rollout_func=make_rollout_func(
                PaidEarly,
                config=RolloutConfig(
                    max_turns=PAID_TURNS + CHANCE_TURNS,
                    max_turn_tokens=2,
                    reward="sum",
                    seed=seed,
                ),
                credit=credit,
            ),
        )
        trainer.train()
    return [log["rewards/early/mean"] for log in trainer.state.log_history if "reward" in log]


def ends(curves: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, tuple[float, float]]:
    """Return the mean of the last steps over seeds, and its standard deviation."""
    last = {name: [fmean(one[-LAST:]) for one in several] for name, several in curves.items()}
    return {name: (fmean(seeds), stdev(seeds)) for name, seeds in last.items()}


def picture_of(curves: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Return the picture as SVG."""
    title = "Reward of the two learnable turns: mean and range of five seeds"
    return picture(curves, title=title, of="reward")


def main(path: str, drawn: str) -> None:
    """Train, and write the curves and their picture."""
    from abut.trl import Returns

    ways = {"GRPO": None, "Returns()": Returns(), "Returns(0.5)": Returns(0.5)}
    curves = {
        name: [[round(reward, 4) for reward in curve(credit, seed)] for seed in range(SEEDS)]
        for name, credit in ways.items()
    }
    for name, (mean, spread) in ends(curves).items():
        print(f"{name:12} last {LAST} steps {mean:.3f}, standard deviation {spread:.3f}")
    Path(path).write_text(json.dumps(curves) + "\n", encoding="utf-8")
    Path(drawn).write_text(picture_of(curves), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
