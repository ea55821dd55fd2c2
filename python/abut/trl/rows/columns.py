"""The row of a rollout, in TRL's format.

Invariant: a row has exactly the tokens that the engine saw and sampled, and ends with a sampled
token. A failed rollout is a row without weight.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from abut._native import Tokenizer
from abut.envs.attributes import TAKEN_COLUMNS
from abut.envs.source import question_of, task_envs
from abut.envs.task import RolloutTask
from abut.errors import RolloutError, TemplateError, TokenizerError
from abut.messages import Message, container_copy, images_of
from abut.processor import PartsProcessor, WritesImages
from abut.rollout.engine import Engine
from abut.rollout.rollout import Branch, Rollout
from abut.tools.tool_env import ToolEpisode
from abut.tools.toolbox import ToolCounts
from abut.trl.metrics import rollout_stats

COLUMNS = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
"""The lists of a `rollout_func` from which TRL makes rows."""

COMPLETIONS = "_abut_completions"
"""A column that `trl.rewards` hands to reward functions as `completions`."""


def rows_of(
    rollouts: Sequence[Rollout],
    tasks: Sequence[RolloutTask],
    engine: Engine,
    *,
    agents: bool = False,
    environments: Sequence[str] = (),
    tools: Sequence[str] = (),
    trains_all: bool | None = False,
    teacher: bool = False,
) -> dict[str, list[Any]]:
    """Return the columns that TRL requires and the extras, each as long as `rollouts`.

    Args:
        rollouts: of one batch.
        tasks: the tasks of the rollouts.
        engine: the engine that played them.
        agents: whether any of the batch could be an agent's.
        environments: the names of all environments, if there is a dict of them.
        tools: the names of the tools that any of the batch could have called.
        trains_all: see `rollout_stats`.
        teacher: whether a teacher has scored the batch.
    """
    told = [told_of(rollout, task) for rollout, task in zip(rollouts, tasks, strict=True)]
    counts = [_tool_counts(task) if tools else None for task in tasks]
    rows = [_row(rollout, task, engine) for rollout, task in zip(rollouts, tasks, strict=True)]
    return {
        **{key: [row[key] for row in rows] for key in rows[0]},
        "env_reward": [rollout.reward for rollout in rollouts],
        "env_step_rewards": [rollout.step_rewards for rollout in rollouts],
        "num_turns": [len(rollout.turns) for rollout in rollouts],
        "stop_reason": [rollout.stop_reason.value for rollout in rollouts],
        "error": [rollout.error for rollout in rollouts],
        "rollout_id": [rollout.rollout_id for rollout in rollouts],
        # Copies: a reward function that changes them changes no record and no other row.
        "messages": [messages for messages, _ in told],
        "measured": [is_measured(rollout) for rollout in rollouts],
        "rollout_stats": [
            rollout_stats(
                rollout,
                agents=agents,
                environment=task.environment,
                environments=environments,
                tools=count,
                tool_names=tools,
                trains_all=trains_all,
                teacher=teacher,
            )
            for rollout, task, count in zip(rollouts, tasks, counts, strict=True)
        ],
        **({COMPLETIONS: [completion for _, completion in told]} if tools else {}),
        **_extras(rollouts),
    }


def is_measured(rollout: Rollout) -> bool:
    """Return whether functions may score it; with `on_failure="zero"` failures are scored too."""
    sampled = rollout.columns is not None and rollout.sampled_tokens > 0
    if rollout.failed:
        return rollout.reward is not None
    return sampled and rollout.measured


def conversations_of(rollout: Rollout) -> list[Branch]:
    """Return the conversations of a rollout that are trained, the rollout's own row first.

    Over all of them, each token that was sampled, delivered and is to be trained is trained once.
    The rollout's own row is included even if no part of the rollout is to be trained.
    """
    main = rollout.main_row
    if main is None:
        return []
    return [main, *(rollout.branches[k] for k in trained_branches(rollout))]


def trained_branches(rollout: Rollout) -> list[int]:
    """Return the indices in `Rollout.branches` of the conversations after the rollout's own."""
    return [k for k, one in enumerate(rollout.branches) if one.delivered and one.trained]


def told_of(rollout: Rollout, task: RolloutTask) -> tuple[list[Message], list[Message] | None]:
    """Return its messages for reward functions, and its completion as messages.

    The completion is None if the environment has no tools: `completions` then stays the single
    message that TRL makes from the tokens. It ends without the tools' last answers, which come
    after the last token of the row.
    """
    made = task_envs(task)
    spoken = None if made is None else made.spoken
    if spoken is None:
        return container_copy(rollout.messages), None
    prompt, sampled = conversation_of(rollout)
    completion = spoken(sampled)
    last = len(completion)
    while last and completion[last - 1].get("role") == "tool":
        last -= 1
    return [*container_copy(prompt), *completion], container_copy(completion[:last])


def conversation_of(rollout: Rollout) -> tuple[list[Message], list[Message]]:
    """Return the messages before the policy's first turn, and the rest."""
    messages = rollout.messages
    spoken = [k for k, message in enumerate(messages) if message.get("role") == "assistant"]
    turns = sum(turn.end > turn.start for turn in rollout.turns)
    at = spoken[-turns] if 0 < turns <= len(spoken) else len(messages)
    return list(messages[:at]), list(messages[at:])


def _tool_counts(task: RolloutTask) -> ToolCounts:
    made = task_envs(task)
    last = None if made is None else made.last
    return last.counts if isinstance(last, ToolEpisode) else ToolCounts()


def _extras(rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
    """Return the extras: one column for each name that any rollout has."""
    names = extra_names(rollouts)
    if taken := sorted(TAKEN_COLUMNS.intersection(names)):
        raise RolloutError(
            f"AgentResult.extras has {taken[0]!r}, but abut or TRL already uses a column of that "
            "name\n"
            "hint: give it another name"
        )
    return {name: [rollout.extras.get(name) for rollout in rollouts] for name in names}


def extra_names(rollouts: Sequence[Rollout]) -> list[str]:
    """Return the names of all extras, each once."""
    return list(dict.fromkeys(name for rollout in rollouts for name in rollout.extras))


def fill_extras(rows: dict[str, list[Any]], names: Iterable[str]) -> None:
    """Add a column of None for each extra that only rollouts of other batches or ranks have."""
    for name in names:
        rows.setdefault(name, [None] * len(rows["rollout_id"]))


def _row(rollout: Rollout, task: RolloutTask, engine: Engine) -> dict[str, list[Any]]:
    # Lists: TRL walks through them in Python, and promises them to reward functions.
    columns = rollout.columns
    if columns is not None and not rollout.failed:
        row = {name: getattr(columns, name).tolist() for name in COLUMNS}
        if not rollout.row_trained:  # TRL needs a row for each prompt; this row is not trained
            row["logprobs"] = [0.0] * len(row["completion_ids"])
            row["env_mask"] = [0] * len(row["completion_ids"])
        return row
    processor = task.processor or engine.processor
    prompt_ids = rollout.prompt_ids
    # Its row has no images, so it must not have their tokens either.
    media = processor.media_token_ids if isinstance(processor, WritesImages) else ()
    if prompt_ids is None or np.isin(prompt_ids, media).any():
        prompt_ids = _canonical_prompt(task, processor, engine.tokenizer)
    # It may have failed because of its length, and TRL would pad all rows of the batch to that
    # length.
    most = engine.budget.max_context_tokens
    kept = prompt_ids if most is None else prompt_ids[: max(1, most - 1)]  # and the stop token
    return {
        "prompt_ids": np.asarray(kept).tolist(),
        "completion_ids": [processor.close_token_id],
        "logprobs": [0.0],
        "env_mask": [0],
    }


def _canonical_prompt(
    task: RolloutTask, processor: PartsProcessor, tokenizer: Tokenizer
) -> list[int]:
    """Return a prompt for a rollout that failed before it had one.

    TRL needs a row in any case; the row has mask 0, so it is not trained. The prompt itself may
    have made the rollout fail, so the fallback is an empty user turn, and then just the stop token.
    """
    messages = list(task.messages)
    if not any(message["role"] == "user" for message in messages):
        messages.append({"role": "user", "content": question_of(task)})
    attempts = [messages, [{"role": "user", "content": ""}]]
    if any(images_of(message.get("content")) for message in messages):
        del attempts[0]
    for attempt in attempts:
        with suppress(TemplateError, TokenizerError):
            parts = processor.opening(attempt)
            return tokenizer.encode_parts(parts).tolist()  # type: ignore[no-any-return]
    return [processor.close_token_id]
