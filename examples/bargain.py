"""Two players who share one policy, each with its own reward: bargaining on a CPU in two minutes.

    pip install 'abut[trl,gateway]' openai
    python bargain.py

The first player says how many of ten coins it keeps, and the second says yes or no. After a yes,
each gets its share; after a no, nobody gets a coin. Each player has its own named endpoint, so its
conversation is its own row, its reward is its own coins, and its baseline is the same player in the
other bargains of the group.

The model has random weights, so it first imitates random answers to learn their format. In 30 steps
of GRPO the first player's mean rises from 2.6 coins to 8, because the second player learns within
five steps that a no earns nothing.
"""

import argparse
import random
import statistics
import tempfile

import openai
import torch
from datasets import Dataset
from trl import GRPOConfig

from abut import RolloutConfig, agent
from abut.agents import AgentResult
from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.trl import GRPOTrainer, env_reward, make_rollout_func

# Creating a client takes longer than a turn, so each rollout uses a copy that shares connections.
CLIENT = openai.AsyncOpenAI(base_url="http://each.rollout.has.its.own", api_key="too")
COINS = 10
OFFER = "Ten coins. How many do you keep?"
ANSWER = "They keep {kept}. Yes or no?"


async def ask(player, content):
    """Ask one player in its own conversation."""
    client = CLIENT.with_options(base_url=player.base_url, api_key=player.api_key)
    completion = await client.chat.completions.create(
        model=player.model, messages=[{"role": "user", "content": content}]
    )
    return completion.choices[0].message.content


@agent
async def bargains(endpoint):
    """Play a bargain; the rewards are the coins of each player."""
    said = await ask(endpoint.named("first"), OFFER)
    if said not in {str(kept) for kept in range(1, COINS)}:
        return AgentResult(0.0, rewards={"first": 0})
    answer = await ask(endpoint.named("second"), ANSWER.format(kept=said))
    kept, left = (int(said), COINS - int(said)) if answer == "yes" else (0, 0)
    # Both players have their own rewards, so the reward of the bargain itself is only logged.
    return AgentResult(float(answer == "yes"), rewards={"first": kept, "second": left})


def show_how_it_is_written(model, tokenizer, *, steps):
    """Train the model to imitate players who answer at random."""
    chance = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        talks = []
        for _ in range(8):
            kept = str(chance.randrange(1, COINS))
            for content, said in (
                (OFFER, kept),
                (ANSWER.format(kept=kept), chance.choice(["yes", "no"])),
            ):
                asked = {"role": "user", "content": content}
                talks.append([asked, {"role": "assistant", "content": said}])
        batch = tokenizer.apply_chat_template(
            talks, padding=True, return_tensors="pt", return_dict=True
        )
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-steps", type=int, default=30, help="training steps of 64 bargains")
    parser.add_argument("--shown", type=int, default=150, help="imitation steps before training")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the sampling")
    given = parser.parse_args()
    torch.set_num_threads(1)
    recipe = DemoRecipe(
        seed=given.seed,
        steps=given.max_steps,
        learning_rate=5e-4,
        entropy_coef=0.0,
        max_completion_tokens=96,
    )
    tokenizer = load_demo_tokenizer()
    model = build_demo_model(tokenizer, recipe)
    show_how_it_is_written(model, tokenizer, steps=given.shown)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=env_reward,
            # With this loss each bargain has the same weight, whatever its length.
            args=GRPOConfig(folder, logging_steps=1, loss_type="grpo", **recipe.grpo_arguments()),
            train_dataset=Dataset.from_dict({"prompt": ["Bargain."] * 1024}),
            processing_class=tokenizer,
            rollout_func=make_rollout_func(
                bargains, config=RolloutConfig(max_turn_tokens=4, seed=given.seed)
            ),
        )
        trainer.train()
    logs = [log for log in trainer.state.log_history if "reward" in log]
    for step in range(0, len(logs), 10):
        first, second = (
            statistics.fmean(log[f"rollout/reward/{player}/mean"] for log in logs[step : step + 10])
            for player in ("first", "second")
        )
        print(f"step {step + 1:>4}: mean coins {first:.2f} and {second:.2f}")
