"""Two players who share one policy, each with its own reward: a bargain, on a CPU, in two minutes.

    pip install 'abut[trl,gateway]' openai
    python bargain.py

The first player says how many of ten coins it keeps, the second says yes or no. After a yes each
has its part, after a no nobody has anything. Each player asks at an endpoint of its own name. So
its conversation is a row, it is paid its own coins, and it is compared with the same player in the
other bargains of its group.

The model begins with random weights, so first it is shown how an answer is written, not which ones
are good. In 30 steps of GRPO the first player goes from 2.6 coins to 8, since the second has learnt
within five that a no pays nothing.
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

# Making a client takes longer than a turn; copies of one share its connections.
CLIENT = openai.AsyncOpenAI(base_url="http://each.rollout.has.its.own", api_key="too")
COINS = 10
OFFER = "Ten coins. How many do you keep?"
ANSWER = "They keep {kept}. Yes or no?"


async def ask(player, content):
    """Ask one player, in a conversation of its own."""
    client = CLIENT.with_options(base_url=player.base_url, api_key=player.api_key)
    completion = await client.chat.completions.create(
        model=player.model, messages=[{"role": "user", "content": content}]
    )
    return completion.choices[0].message.content


@agent
async def bargains(endpoint):
    """One bargain: what each player is paid, in coins."""
    said = await ask(endpoint.named("first"), OFFER)
    if said not in {str(kept) for kept in range(1, COINS)}:
        return AgentResult(0.0, rewards={"first": 0})
    answer = await ask(endpoint.named("second"), ANSWER.format(kept=said))
    kept, left = (int(said), COINS - int(said)) if answer == "yes" else (0, 0)
    # The reward of the bargain itself trains nobody, since both players have one of their own.
    return AgentResult(float(answer == "yes"), rewards={"first": kept, "second": left})


def show_how_it_is_written(model, tokenizer, *, steps):
    """Have the model imitate players who answer at random."""
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
    parser.add_argument("--max-steps", type=int, default=30, help="each of 64 bargains")
    parser.add_argument("--shown", type=int, default=150, help="steps of imitation before")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the sampling")
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
            # One bargain, one vote, however much is said in it.
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
