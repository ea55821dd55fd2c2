"""Train an agent that uses the OpenAI client: a game with a tool, on a CPU, in two minutes.

    pip install 'abut[trl,gateway]' openai
    python agent_openai.py

One of three boxes contains gold. The policy chooses a box with a tool call, the agent opens it and
tells the policy what was inside, and the policy takes the content or leaves it. The endpoint is
abut's, and the tokens that the policy sampled in the two calls become one row.

The model has random weights, so it first imitates random calls and answers to learn their format.
In 30 steps of GRPO its mean reward rises from 0.2 to 0.9.
"""

import argparse
import json
import random
import statistics
import tempfile

import openai
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from abut import agent
from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.trl import env_reward, make_rollout_func

# Creating a client takes longer than a turn, so each rollout uses a copy that shares connections.
CLIENT = openai.AsyncOpenAI(base_url="http://each.rollout.has.its.own", api_key="too")
QUESTION = {"role": "user", "content": "Open a box."}
BOX = {"type": "integer"}
PARAMETERS = {"type": "object", "properties": {"box": BOX}, "required": ["box"]}
TOOLS = [{"type": "function", "function": {"name": "open", "parameters": PARAMETERS}}]


@agent
async def seeks_gold(endpoint, gold):
    """Play a game: 1.0 for taking gold, 0.3 for leaving an empty box."""
    client = CLIENT.with_options(base_url=endpoint.base_url, api_key=endpoint.api_key)
    messages = [QUESTION]

    async def ask():
        completion = await client.chat.completions.create(
            model=endpoint.model, messages=messages, tools=TOOLS
        )
        messages.append(completion.choices[0].message)
        return messages[-1]

    calls = (await ask()).tool_calls
    if not calls:
        return 0.0
    found = json.loads(calls[0].function.arguments).get("box") == gold
    for call in calls:
        inside = "gold" if found else "nothing"
        messages.append({"role": "tool", "tool_call_id": call.id, "content": inside})
    said = (await ask()).content
    return {("take", True): 1.0, ("leave", False): 0.3}.get((said, found), 0.0)


def show_how_it_is_written(model, tokenizer, *, steps):
    """Train the model to imitate games with random choices."""
    chance = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        games = []
        for _ in range(16):
            call = {"name": "open", "arguments": {"box": chance.choice([1, 2, 3])}}
            games.append(
                [
                    QUESTION,
                    {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]},
                    {"role": "tool", "content": chance.choice(["gold", "nothing"])},
                    {"role": "assistant", "content": chance.choice(["take", "leave"])},
                ]
            )
        batch = tokenizer.apply_chat_template(
            games, tools=TOOLS, padding=True, return_tensors="pt", return_dict=True
        )
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-steps", type=int, default=30, help="training steps of 64 games")
    parser.add_argument("--shown", type=int, default=150, help="imitation steps before training")
    given = parser.parse_args()
    torch.set_num_threads(1)
    recipe = DemoRecipe(
        steps=given.max_steps, learning_rate=5e-4, entropy_coef=0.0, max_completion_tokens=96
    )
    tokenizer = load_demo_tokenizer()
    model = build_demo_model(tokenizer, recipe)
    show_how_it_is_written(model, tokenizer, steps=given.shown)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=env_reward,
            args=GRPOConfig(folder, logging_steps=1, **recipe.grpo_arguments()),
            train_dataset=Dataset.from_dict({"prompt": ["Open a box."] * 1024, "gold": [3] * 1024}),
            processing_class=tokenizer,
            rollout_func=make_rollout_func(seeks_gold),
        )
        trainer.train()
    rewards = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    for step in range(0, len(rewards), 10):
        print(f"step {step + 1:>4}: mean reward {statistics.fmean(rewards[step : step + 10]):.3f}")
