"""A question in a string prompt that `reset` does not show is warned of; a seed never is."""

from typing import Any

import pytest

pytest.importorskip("trl")

from abut.trl.trainer_checks import warn_of_unseen
from tests.kit.stage.rollouts import Stage, Talk, env

QUESTIONS = ("What is 2+2?", "What is 3+3?")


class Shows(Talk):
    """Says what it was seeded with."""

    def reset(self, seed: str) -> Any:
        return self, f"Solve this.\n{seed.splitlines()[-1]}"


def warned(stage: Stage, made: Any, *prompts: Any) -> bool:
    tasks = [
        task
        for prompt in prompts
        for task in stage.tasks([made], seed=str(prompt), columns={"prompt": prompt})
    ]
    return warn_of_unseen(tasks, [stage.play(made, task={"seed": t.seed}).one for t in tasks])


def test_questions_that_no_rollout_shows_are_warned_of(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    assert warned(stage, env(Talk, texts=("Solve the task.",)), *QUESTIONS)
    (said,) = [r.getMessage() for r in caplog.records if "string prompts" in r.getMessage()]
    assert said == (
        "the policy never sees the 2 string prompts of this batch, such as 'What is 2+2?': a "
        "string prompt is passed to `reset` as its seed, and the policy sees only what `reset` "
        "returns\n"
        "hint: return the seed from reset(self, seed), or write the prompt as messages, "
        '[{"role": "user", "content": …}]'
    )


@pytest.mark.parametrize(
    ("made", "prompts"),
    [
        (Shows, QUESTIONS),
        (Shows, ("Look at this one:\nWhat is 2+2?", "Look at this one:\nWhat is 3+3?")),
        (Talk, ("17", "18")),
        (Talk, ("level one", "level two")),
        (Talk, ("Start the task now",) * 2),
        (Talk, ("What is 2+2?", "18")),
    ],
    ids=["shown", "a line is shown", "numbers", "few words", "equal", "one is a seed"],
)
def test_a_prompt_that_is_shown_or_a_seed_is_not_warned_of(
    stage: Stage, made: Any, prompts: Any
) -> None:
    assert not warned(stage, made, *prompts)
