"""String prompts that never reach the policy.

Invariant: only questions are reported. A string prompt is a seed of `reset`, and an environment may
use it as it likes: numbers and single words are never reported, nor is one text for all rollouts,
nor a batch of which any line of any prompt was shown.
"""

import logging
from collections.abc import Sequence

from abut.envs.task import RolloutTask
from abut.messages import Message, texts_of
from abut.rollout.own_loop import OwnLoop
from abut.rollout.rollout import Rollout

logger = logging.getLogger(__name__)
_WORDS = 3


def warn_of_unseen(tasks: Sequence[RolloutTask], rollouts: Sequence[Rollout]) -> bool:
    """Warn if no rollout of a batch shows a line of its string prompt; returns whether it warned.

    Agents are left out: they get the prompt as a column, and may pass it to whatever they like.
    """
    played = [
        (prompt, rollout.messages)
        for task, rollout in zip(tasks, rollouts, strict=True)
        if isinstance(prompt := task.columns.get("prompt"), str)
        and not isinstance(task.make_env, OwnLoop)
        and rollout.turns  # else it may have failed before its opening was there
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
