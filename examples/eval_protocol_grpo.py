"""Train on an unchanged Eval Protocol test: sums of two digits, on a CPU, in two minutes.

    pip install 'abut[trl,eval_protocol]'
    python eval_protocol_grpo.py

The test is `eval_protocol_sums.py` in the same folder; pytest can run it too. Training uses its
rows, its processor and its score.

The model has random weights, so it first imitates random numbers to learn the format of an answer.
In 30 steps of GRPO its mean score rises from 0.2 to 0.9.
"""

import argparse
import random
import statistics
import tempfile

import torch
from datasets import concatenate_datasets
from eval_protocol_sums import SUMS
from trl import GRPOConfig, GRPOTrainer

from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.eval_protocol import eval_test
from abut.trl import env_reward, make_rollout_func


def show_how_it_is_written(model, tokenizer, *, steps):
    """Train the model to imitate random answers."""
    chance = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        asked = [chance.choice(SUMS) for _ in range(16)]
        said = [
            [
                {"role": "user", "content": f"{a} + {b}"},
                {"role": "assistant", "content": str(chance.choice([5, 6, 7, 8]))},
            ]
            for a, b in asked
        ]
        batch = tokenizer.apply_chat_template(
            said, padding=True, return_tensors="pt", return_dict=True
        )
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-steps", type=int, default=30, help="training steps of 64 rollouts")
    parser.add_argument("--shown", type=int, default=60, help="imitation steps before training")
    given = parser.parse_args()
    torch.set_num_threads(1)
    recipe = DemoRecipe(
        steps=given.max_steps, learning_rate=1e-3, entropy_coef=0.0, max_completion_tokens=8
    )
    tokenizer = load_demo_tokenizer()
    model = build_demo_model(tokenizer, recipe)
    show_how_it_is_written(model, tokenizer, steps=given.shown)
    test = eval_test("eval_protocol_sums", log="sample")
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=env_reward,
            args=GRPOConfig(folder, logging_steps=1, **recipe.grpo_arguments()),
            train_dataset=concatenate_datasets([test.dataset()] * 256),
            processing_class=tokenizer,
            rollout_func=make_rollout_func(test),
        )
        trainer.train()
    rewards = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    for step in range(0, len(rewards), 10):
        print(f"step {step + 1:>4}: mean score {statistics.fmean(rewards[step : step + 10]):.3f}")
