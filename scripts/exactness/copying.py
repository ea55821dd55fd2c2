"""Task 1, the demo's task: repeat the row of symbols that each of three turns shows.

The demo begins with random weights and needs 120 steps of 64 rollouts. Here a run begins with a
model that has learnt to say the right row in two of five turns, and random tokens in the others.
Then 20 steps of 32 rollouts are enough, and 15 runs take minutes on a CPU.
"""

import random
from pathlib import Path
from typing import Any, Self

from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.envs import CopyRowEnv

RIGHT = 0.4
LESSONS = ((50, 3e-3, 1.0), (40, 2e-3, RIGHT))
"""Steps, learning rate, and how often the taught row is right."""
TAUGHT_BATCH = 16
RECIPE = DemoRecipe(steps=20, batch=32, rows=1024)


class SeededCopy(CopyRowEnv):
    """The demo's environment, with rows that depend only on the prompt, the same for all arms."""

    def reset(self, seed: str) -> tuple[Self, str]:  # type: ignore[override]
        """Begin."""
        return super().reset(seed, episode_seed=0)


class CopyGame:
    """The conversation as re-rendering loops keep it."""

    tools = None

    def __init__(self, row: dict[str, Any]) -> None:
        self._env, shown = SeededCopy().reset(row["prompt"])
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": shown}]
        self.score = 0.0

    def history(self) -> list[dict[str, Any]]:
        """Return all messages."""
        return self._messages

    def hear(self, tokenizer: Any, prompt: list[int], ids: list[int], *, last: bool) -> bool:
        """Take a turn."""
        text = tokenizer.decode(ids, skip_special_tokens=True)
        self._messages.append({"role": "assistant", "content": text})
        _, shown = self._env.step(text)
        self.score = self._env.reward
        if self._env.alive and not last:
            self._messages.append({"role": "user", "content": shown})
        return self._env.alive


def taught_copier(folder: Path) -> Any:
    """Return the model that every run begins with; `folder` stores its taught weights."""
    from transformers import Qwen3ForCausalLM

    kept = folder / "copy_model"
    if not kept.is_dir():
        model = build_demo_model(load_demo_tokenizer(), RECIPE)
        teach(model)
        model.save_pretrained(kept)
    return Qwen3ForCausalLM.from_pretrained(kept, dtype="float32")


def teach(model: Any) -> float:
    """Teach the demo's model, and return the loss of the last step."""
    import torch

    tokenizer = load_demo_tokenizer()
    rng = random.Random(0)
    loss = torch.zeros(())
    for steps, rate, right in LESSONS:
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        for _ in range(steps):
            rows = [_taught_row(rng, tokenizer, right) for _ in range(TAUGHT_BATCH)]
            ids, said = (torch.tensor(part) for part in zip(*rows, strict=True))
            labels = torch.where(said == 1, ids, -100)[:, 1:]
            logits = model(input_ids=ids).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return float(loss.detach())


def _taught_row(rng: random.Random, tokenizer: Any, right: float) -> tuple[list[int], list[int]]:
    """Return the ids of a taught conversation of fixed length, and which the policy says."""
    ids: list[int] = []
    said: list[int] = []
    for turn in range(3):
        row = rng.choice("0123") * 4
        heard = f"{'<|im_end|>' * (turn > 0)}{chr(10) * (turn > 0)}<|im_start|>user\nSay {row}"
        heard_ids = tokenizer.encode(f"{heard}<|im_end|>\n<|im_start|>assistant\n")
        # The first 503 ids are bytes and merges, and the others are control tokens.
        noise = [rng.randrange(503) for _ in range(4)]
        answer = tokenizer.encode(row) if rng.random() < right else noise
        ids += heard_ids + answer
        said += [0] * len(heard_ids) + [1] * 4
    return ids, said
