"""Find the coloured square: a game with pictures, in which a small model learns to look, on a CPU.

    pip install 'abut[trl,images]'
    python find_square_cpu.py

The policy sees a grey board, chooses a quarter to see in colour, and then names the colour. The
model is a LLaVA with 0.2 M parameters. It first learns by imitation to name colours, and to choose
a quarter that is right in two of five cases. It learns by playing where to look.
"""

import argparse
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig

from abut import Image, RolloutConfig
from abut.demo.model import DemoRecipe, load_demo_tokenizer
from abut.trl import GRPOTrainer, env_reward, make_rollout_func

QUARTERS = "1234"  # top left, top right, bottom left, bottom right
COLOURS = {"r": (220, 40, 40), "g": (40, 180, 40), "b": (50, 70, 230), "y": (235, 210, 30)}
GROUND, GREY = 90, 230
SIDE, SQUARE = 64, 16  # width of the board and of the square, in pixels
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for b in m.content %}"
    "{{ '<image>' if b.type == 'image' else b.text }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class FindSquare:
    """Two turns: the first names a quarter, `1` to `4`, the second a colour, `r`, `g`, `b` or `y`.

    Half of the reward is for looking at the square, and half for its colour. A colour without
    looking at it has no reward, so guessing does not help.
    """

    def reset(self, seed: str, episode_seed: int) -> Any:
        rng = random.Random(episode_seed)
        self.quarter, self.colour = rng.choice(QUARTERS), rng.choice([*COLOURS])
        self.reward, self.alive, self.looked = 0.0, True, False
        self.board = np.full((SIDE, SIDE, 3), GROUND, np.uint8)
        room = SIDE // 2 - SQUARE
        square = self.see(self.quarter)[rng.randint(0, room) :, rng.randint(0, room) :]
        square[:SQUARE, :SQUARE] = COLOURS[self.colour]
        grey = np.where(self.board == GROUND, GROUND, GREY).max(-1, keepdims=True)
        return self, [{"type": "image", "image": grey.repeat(3, -1).astype(np.uint8)}]

    def step(self, action: str) -> Any:
        if not self.looked:
            self.looked = True
            self.reward = 0.5 * (action == self.quarter)
            crop = self.see(action if action in [*QUARTERS] else "1")
            return self, [{"type": "image", "image": crop.copy()}]
        self.alive = False
        if self.reward and action == self.colour:
            self.reward = 1.0
        return self, "Right." if action == self.colour else "Wrong."

    def see(self, quarter: str) -> Any:
        """Return a view of the pixels of a quarter."""
        half = SIDE // 2
        row, column = divmod(QUARTERS.index(quarter), 2)
        return self.board[row * half :, column * half :][:half, :half]


def tiny_llava(seed: int) -> tuple[Any, Any]:
    """Return a LLaVA with random weights, and its processor with 16 tokens per picture."""
    tokenizer = load_demo_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    processor = transformers.LlavaProcessor(
        transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        ),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHATML,
    )
    size = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    config = transformers.LlavaConfig(
        text_config=transformers.Qwen3Config(
            **size,
            vocab_size=len(tokenizer),
            num_hidden_layers=1,
            num_key_value_heads=4,
            head_dim=16,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config=transformers.CLIPVisionConfig(
            **size, num_hidden_layers=1, image_size=32, patch_size=8
        ),
        image_token_index=processor.image_token_id,
        vision_feature_layer=-1,
    )
    torch.manual_seed(seed)
    return transformers.LlavaForConditionalGeneration(config), processor


def teach(model: Any, processor: Any, seed: int, steps: int) -> None:
    """Teach the format: some quarter for a board, and the colour of a crop."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    asked = "<|im_start|>user\n<image><|im_end|>\n<|im_start|>assistant\n"
    for _ in range(steps):
        texts, images, words = [], [], []
        for _ in range(32):
            env = FindSquare()
            _, (board,) = env.reset("", rng.randrange(2**31))
            quarter = rng.choice([env.quarter, *QUARTERS])  # right in two of five cases
            texts.append(f"{asked}{quarter}<|im_end|>\n{asked}")
            images += [[Image.of(board["image"]).to_pil(), Image.of(env.see(env.quarter)).to_pil()]]
            words.append((quarter, env.colour))
        made = processor(text=texts, images=images, return_tensors="pt")
        # All rows have the same length, because a quarter is one token and a picture is 16.
        first = len(processor(text=asked, images=images[0][0]).input_ids[0])
        logits = model(**made).logits[:, [first - 1, -1]]
        targets = [processor.tokenizer.convert_tokens_to_ids([*pair]) for pair in words]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.tensor(targets).flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-steps", type=int, default=300, help="training steps of 64 games")
    parser.add_argument(
        "--taught-steps", type=int, default=300, help="imitation steps before training"
    )
    parser.add_argument("--records", type=Path, help="folder for records and pictures of the games")
    given = parser.parse_args()
    torch.set_num_threads(1)  # on matrices this small, threads only wait for each other
    recipe = DemoRecipe(steps=given.max_steps, learning_rate=5e-4, entropy_coef=0.01)
    model, processor = tiny_llava(recipe.seed)
    teach(model, processor, recipe.seed, given.taught_steps)
    keep = {}
    if given.records is not None:
        keep = {
            "recorder": given.records / "games.jsonl",
            "record_images": given.records / "images",
        }
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=env_reward,
            args=GRPOConfig(folder, logging_steps=1, **recipe.grpo_arguments()),
            train_dataset=Dataset.from_dict({"prompt": ["find"] * 1024}),
            processing_class=processor,
            rollout_func=make_rollout_func(
                FindSquare, config=RolloutConfig(max_turns=2, max_turn_tokens=1), **keep
            ),
        )
        trainer.train()
    rewards = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    for step in range(0, len(rewards), 10):
        print(f"step {step + 1:>4}: mean reward {statistics.fmean(rewards[step : step + 10]):.3f}")
