"""Warnings of a setup under which training goes on and learns nothing useful."""

import logging
import warnings
from collections.abc import Sequence
from typing import Any

from abut.envs.task import RolloutTask
from abut.messages import Message, texts_of
from abut.rollout.player import player_of
from abut.rollout.rollout import Rollout

logger = logging.getLogger(__name__)
_WORDS = 3


def warn_of_unseen(tasks: Sequence[RolloutTask], rollouts: Sequence[Rollout]) -> bool:
    """Warn if no rollout of a batch shows a line of its string prompt; returns whether it warned.

    A string prompt is a seed of `reset`, and an environment may use it as it likes. So only
    questions are reported: never numbers or single words, one text for all rollouts, or a batch of
    which any line of any prompt was shown. Agents are left out: they get the prompt as a column,
    and may pass it to whatever they like.
    """
    played = [
        (prompt, rollout.messages)
        for task, rollout in zip(tasks, rollouts, strict=True)
        if isinstance(prompt := task.columns.get("prompt"), str)
        and player_of(task) is None
        and rollout.turns  # without a turn, it may have failed before its prompt was there
    ]
    prompts = {prompt for prompt, _ in played}
    if len(prompts) < 2 or any(len(prompt.split()) < _WORDS for prompt in prompts):
        return False
    if any(_shows(messages, prompt) for prompt, messages in played):
        return False
    logger.warning(
        "the %d string prompts of this batch, such as %r, are in no rollout: a string prompt is "
        "the seed of `reset`, and the policy sees only what `reset` returns\n"
        "hint: return the seed from reset(self, seed), or write the prompt as messages, "
        '[{"role": "user", "content": …}]',
        len(prompts),
        played[0][0][:80],
    )
    return True


def _shows(messages: Sequence[Message], prompt: str) -> bool:
    """Return whether any line of a prompt stands in what was said before the policy spoke."""
    opening: list[str] = []
    for message in messages:
        if message.get("role") == "assistant":
            break
        opening += texts_of(message)
    said = "\n".join(opening)
    return any(line.strip() in said for line in prompt.splitlines() if line.strip())


def check_end_tokens(
    trainer: Any, hf_tokenizer: Any, end_token_id: int, *, stacklevel: int
) -> None:
    """Warn where TRL would take each row for one that was cut, because of its EOS tokens.

    Raises:
        ValueError: there is no token to pad rows with.
    """
    name, eos = hf_tokenizer.name_or_path, hf_tokenizer.eos_token_id
    if hf_tokenizer.pad_token_id is None:
        raise ValueError(
            f"the tokenizer {name!r} has no pad token, which rows are filled up with, and no EOS "
            "token to take its place\n"
            "hint: set tokenizer.eos_token to the token that ends a turn, and tokenizer.pad_token"
        )
    # TRL 1.14 and later also take the EOS tokens of the model's generation config.
    ends = [i for i in getattr(trainer, "eos_token_ids", [eos]) if i is not None]
    end = hf_tokenizer.convert_ids_to_tokens(end_token_id)
    if eos is None:
        what = f"the tokenizer {name!r} has no EOS token"
    elif end_token_id not in ends:
        theirs = ", ".join(map(repr, hf_tokenizer.convert_ids_to_tokens(ends)))
        what = f"turns end on {end!r}, but the tokenizer {name!r} and the model say {theirs}"
    else:
        return
    warnings.warn(
        f"{what}: TRL tells by its EOS tokens whether a completion ended, and takes others for cut "
        "(completions/clipped_ratio; mask_truncated_completions leaves them out)\n"
        f"hint: tokenizer.eos_token = {end!r}",
        stacklevel=stacklevel + 1,
    )
