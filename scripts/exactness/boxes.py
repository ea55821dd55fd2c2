"""Task 2: three turns with a tool, Qwen3's chat template, thinking on.

Every box holds the number of the next one. The policy thinks of a number and opens that box, twice,
and then says the number that it found last. A third of the reward is for each right number.

The model first learns the format by imitation, because a random model does not write tool calls.
It learns the layouts that real models mix (spaces and line breaks in a call and around a thought),
and in each turn a number that is right in about two of five cases. Reinforcement learning teaches
it the right numbers.
"""

import importlib.resources
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

BOXES = 10
RIGHT = 0.4
"""How often a taught thought is right on purpose; a tenth of the others is right by chance."""
CANONICAL = 0.5
"""The share of taught thoughts and of taught calls in the template's own layout."""
TAUGHT_BATCH = 16
LESSONS = ((150, 4e-3, 1.0, False), (100, 2e-3, RIGHT, True))
"""Steps, learning rate, how often a thought is right, and whether the tools are shown. Where two
numbers of five are right from the start, a model of one layer learns no copying in 300 steps, and
without the 150 tokens that show the tools a step takes half the time."""
VOCAB_SIZE = 512

# The layouts: the first is the template's own.
THOUGHTS = ("<think>\nIt is {n}.\n</think>\n\n", "<think>It is {n}.</think>\n")
CALLS = (
    '<tool_call>\n{{"name": "open", "arguments": {{"box": {n}}}}}\n</tool_call>',
    '<tool_call>{{"name":"open","arguments":{{"box":{n}}}}}</tool_call>',
)
END, HEAD = "<|im_end|>\n", "<|im_start|>assistant\n"


class Boxes:
    """The environment, for TRL's `environment_factory` and abut's `make_rollout_func`."""

    def reset(self, start: int, episode: int, **row: Any) -> None:
        """Begin an episode; it ignores the row's other columns."""
        self._holds = holds(episode)
        self._next = start
        self._right: list[bool] = []

    def open(self, box: int) -> int:
        """Open a box.

        Args:
            box: Its number.

        Returns:
            The number in it.
        """
        found = self._holds[range(BOXES).index(box)]
        self._right.append(box == self._next)
        self._next = found
        return found

    def _score(self, answer: str) -> float:
        """Return the share of right numbers: two boxes and the answer."""
        named = len(self._right) > 1 and answer.strip() == str(self._next)
        return (sum(self._right[:2]) + named) / 3


def holds(episode: int) -> list[int]:
    """Return the numbers in the boxes of an episode."""
    rng = random.Random(episode)
    return [rng.randrange(BOXES) for _ in range(BOXES)]


def scores(completions: Any, environments: Any, **_: Any) -> list[float]:
    """Score the rollouts of abut and of TRL's own loop: the last message is the answer."""
    return [
        environment._score(said[-1]["content"] if said[-1]["role"] == "assistant" else "")
        for said, environment in zip(completions, environments, strict=True)
    ]


def chat_template() -> str:
    """Return Qwen3's chat template, which TRL ships."""
    folder = importlib.resources.files("trl") / "chat_templates"
    return (folder / "qwen3.jinja").read_text(encoding="utf-8")


@cache
def _tokenizer_json() -> str:
    from abut.demo.model import load_demo_tokenizer
    from scripts.train_demo_tokenizer import MARKUP, SPECIAL, train

    rng = random.Random(0)
    prompt = _prompt(load_demo_tokenizer())
    added = re.compile("|".join(map(re.escape, SPECIAL + MARKUP)))
    conversations = (_conversation(rng, prompt, right=RIGHT, dropped=False) for _ in range(64))
    pieces = [text for each in conversations for text, _ in each]
    # Added tokens split text before anything else, so they are never part of a merge.
    return train([part for text in pieces for part in added.split(text)], VOCAB_SIZE).to_str()


def boxes_tokenizer() -> Any:
    """Return a tokenizer of the task's words, with Qwen3's pipeline, added tokens and template.

    With Qwen3's 151,669 tokens, a run on a CPU would mostly compute logits. The task has few words,
    so 512 tokens encode them nearly as well.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_tokenizer_json()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=chat_template(),
        clean_up_tokenization_spaces=False,
    )


def tools() -> list[Any]:
    """Return the JSON schema of the tool."""
    from transformers.utils import get_json_schema

    return [get_json_schema(Boxes().open)]


def question(start: int) -> list[dict[str, Any]]:
    """Return the messages that begin a conversation."""
    return [{"role": "user", "content": f"Begin with box {start}."}]


def _prompt(tokenizer: Any) -> str:
    """Return the template's text before the first turn, with `{}` for the first number."""
    text: str = tokenizer.apply_chat_template(
        question(BOXES),
        tools=tools(),
        chat_template=chat_template(),
        add_generation_prompt=True,
        tokenize=False,
    )
    return text.replace(f"box {BOXES}.", "box {}.")


def _conversation(
    rng: random.Random, prompt: str, *, right: float, dropped: bool
) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a taught conversation, each with True if the policy says it.

    Args:
        rng: draws numbers and layouts.
        prompt: the text before the first turn, with `{}` for the first number.
        right: how often a thought is right on purpose.
        dropped: True: earlier turns are rendered without their thoughts, as in Qwen3's history.
    """
    wanted = rng.randrange(BOXES)
    yield prompt.replace("{}", str(wanted)), False
    last = rng.randrange(3) if dropped else 2
    for turn in range(last + 1):
        said = wanted if rng.random() < right else rng.randrange(BOXES)
        thought = THOUGHTS[rng.random() >= CANONICAL].format(n=said)
        call = CALLS[rng.random() >= CANONICAL].format(n=said) if turn < 2 else str(said)
        past = dropped and turn < last
        yield (CALLS[0].format(n=said) if past else thought + call), not past
        yield END[:-1], not past
        if turn == last:
            return
        wanted = rng.randrange(BOXES)
        result = f"<|im_start|>user\n<tool_response>\n{wanted}\n</tool_response>{END}"
        yield f"\n{result}{HEAD}", False


def taught_model(folder: Path) -> Any:
    """Return the model that every run begins with; `folder` stores its taught weights."""
    from transformers import Qwen3ForCausalLM

    kept = folder / "boxes_model"
    if not kept.is_dir():
        model = _untaught(boxes_tokenizer())
        teach(model, boxes_tokenizer(), LESSONS)
        model.save_pretrained(kept)
    return Qwen3ForCausalLM.from_pretrained(kept, dtype="float32")


def _untaught(tokenizer: Any) -> Any:
    from abut.demo.model import DemoRecipe, build_demo_model

    return build_demo_model(tokenizer, DemoRecipe(seed=0, layers=1, hidden_size=64))


def teach(model: Any, tokenizer: Any, lessons: Sequence[tuple[int, float, float, bool]]) -> float:
    """Teach the format, and return the loss of the last step."""
    import torch

    rng = random.Random(0)
    loss = torch.zeros(())
    for steps, rate, right, shown in lessons:
        prompt = _prompt(tokenizer)
        prompt = prompt if shown else prompt[prompt.rindex("<|im_start|>user") :]
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, total_iters=steps)
        for _ in range(steps):
            rows = [_taught_row(rng, tokenizer, prompt, right) for _ in range(TAUGHT_BATCH)]
            longest = max(len(ids) for ids, _ in rows)
            ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
            labels = torch.tensor([said + [-100] * (longest - len(said)) for _, said in rows])
            first = int((labels >= 0).any(0).nonzero()[0])  # logits of the prompt are not needed
            hidden = model.model(input_ids=ids).last_hidden_state[:, first - 1 : -1]
            logits = model.lm_head(hidden).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, labels[:, first:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return float(loss.detach())


def _taught_row(
    rng: random.Random, tokenizer: Any, prompt: str, right: float
) -> tuple[list[int], list[int]]:
    """Return the ids of a taught conversation, and their labels."""
    pieces = _conversation(rng, prompt, right=right, dropped=rng.random() < 0.5)
    encoded = [(tokenizer.encode(text), said) for text, said in pieces]
    ids = [i for piece, _ in encoded for i in piece]
    return ids, [i if said else -100 for piece, said in encoded for i in piece]
