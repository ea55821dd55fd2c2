"""One rank of a batch with tools, in TRL's own loop or in ours: the words of both are the same.

One rank's rollouts make one call, which fails, the other's three good ones.
"""

import os
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import get_training_chat_template

from abut.trl import env_reward, make_rollout_func
from tests.kit.stage.rollouts import Batched
from tests.kit.training.example_run import CPU
from tests.kit.training.models import rank_model
from tests.kit.training.ranks import leave

_TURNS = {"bad": ["break", "done"], "good": ["look", "look", "look", "done"]}


class Room:
    """An environment as TRL's documentation has them."""

    def reset(self, **row: Any) -> None: ...

    def look(self) -> str:
        """Look."""
        return "a door"

    def get_reward(self) -> float:
        return 1.0


def main(folder: Path, loop: str) -> None:
    """Take one step; write down the metrics of tools."""
    tokenizer = AutoTokenizer.from_pretrained(Path(os.environ["ABUT_TOKENIZERS"]) / "qwen3")
    _, model = rank_model(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )

    def spoken(prompt_ids: Any) -> list[int]:
        text = tokenizer.decode(prompt_ids)
        (words,) = (words for row, words in _TURNS.items() if f"A {row} row." in text)
        word = words[text.count("<|im_start|>assistant") - 1]
        call = f'<tool_call>\n{{"name": "{word}", "arguments": {{}}}}\n</tool_call>'
        return [*tokenizer.encode("Done." if word == "done" else call), tokenizer.eos_token_id]

    def say(prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        return [spoken(ids) for ids in prompt_ids], None

    how: dict[str, Any] = {"environment_factory": Room, "reward_funcs": []}
    if loop == "ours":
        sampler = Batched(lambda request: spoken(request.prompt_ids))
        rollout_func = make_rollout_func(Room, sampler=sampler)
        how = {"rollout_func": rollout_func, "reward_funcs": env_reward}
        tokenizer.chat_template = get_training_chat_template(tokenizer)
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=1,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=256,
            logging_steps=1,
            chat_template_kwargs={"enable_thinking": False},
            **CPU,
        ),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"A {row} row."}]} for row in _TURNS]
        ),
        **how,
    )
    trainer._generate_single_turn = say
    trainer.train()
    log = trainer.state.log_history[0]
    # Those by tool, `tools/call_frequency/NAME`, are not TRL's.
    names = [name for name in sorted(log) if name.startswith("tools/") and name.count("/") == 1]
    leave(folder, {name: log[name] for name in names})
    # With TRL's own loop one rank in a dozen runs ended with an error and without a word, after all
    # that is compared was written; a daemon thread of that loop is still there when Python ends.
    sys.stdout.flush()
    os._exit(0)
