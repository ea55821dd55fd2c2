"""The rows that asynchronous trainers train: one for each branch of a rollout.

Invariant: over the rows of a rollout, each token that was sampled and delivered is trained once,
with the logprob that it was drawn with. A row has a trained token, and the version of the oldest
weights that sampled one of its tokens.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut._native import Columns
from abut.messages import Message
from abut.rollout.rollout import Rollout, StopReason
from abut.samplers.sampler import VERSIONS
from abut.trl.rows.columns import conversation_of, conversations_of, trained_branches


class RowMetrics(dict[str, float]):
    """The metrics of a row, which also identify it: the trainer passes the object on unchanged."""

    number = 0
    """The position of the row in the order in which rows were pushed, from 1."""


@dataclass(eq=False)
class RolloutRow:
    """A row in the buffer, with TRL's own field names."""

    prompt: Sequence[Message]
    completion: Sequence[Message]
    input_ids: Any
    """`(T,)` int64, prompt and completion; a list for TRL before 1.16, like the next two."""
    completion_mask: Any
    """`(T,)` int64, 1 for trained tokens."""
    old_log_probs: Any
    """`(T,)` float32, nats; 0.0 for tokens that are not trained."""
    advantage: float
    model_version: int
    group_id: int
    metrics: RowMetrics = field(default_factory=RowMetrics)
    enqueued_at: float | None = None
    """The time at which it was pushed, in seconds since 1970."""
    teacher_id: str = ""
    """The name of the teacher that scores it; empty without a teacher."""

    def enqueued(self) -> "RolloutRow":
        """Return the same row, marked as pushed now."""
        self.enqueued_at = time.time()
        return self

    @property
    def trained_tokens(self) -> int:
        """The number of tokens in the loss."""
        return int(np.sum(self.completion_mask))


@dataclass(eq=False)
class DistillationRow(RolloutRow):
    """A row for `AsyncDistillationTrainer`, which does not need advantages or logprobs."""

    teacher_topk_ids: Any = None
    """`(T, W)` int64: the teacher's candidates for each token, -1 for padding; for TRL before 1.16
    a list for each token, without padding.
    """
    teacher_topk_logprobs: Any = None
    """`(T, W)` float32, nats; -inf for padding."""

    @property
    def prompt_id(self) -> int:
        """The number of its prompt, counted over all epochs; used by TRL 1.13 and later."""
        return self.group_id


def can_be_scored(rollout: Rollout) -> bool:
    """Return whether the rollout can be scored: a rollout that failed or was ended early cannot."""
    ended_early = rollout.failed or rollout.stop_reason is StopReason.STALE
    return rollout.columns is not None and rollout.measured and not ended_early


def rows_of_rollout(
    rollout: Rollout,
    *,
    advantages: Sequence[float | None],
    group_id: int,
    metrics: Mapping[str, float],
    version: int,
    as_lists: bool,
    teacher_id: str = "",
) -> list[RolloutRow]:
    """Return the rows of a rollout; empty if no part of it can be trained.

    Args:
        rollout: one that has a score.
        advantages: one for each of its `conversations_of`; None: that conversation is not a row.
        group_id: of its group.
        metrics: shared by all its rows; each gets a copy.
        version: the version of rows whose weights are unknown.
        as_lists: whether the trainer takes lists instead of arrays.
        teacher_id: of its rows.
    """
    prompt, completion = conversation_of(rollout)
    rows = []
    for conversation, advantage in zip(conversations_of(rollout), advantages, strict=True):
        columns, versions = conversation.columns, conversation.streams.get(VERSIONS)
        ids, mask, logprobs = joined(columns)
        if advantage is None or not mask[1:].any():  # nothing predicts the first token of a row
            continue
        trained = () if versions is None else versions[columns.env_mask == 1]
        rows.append(
            RolloutRow(
                prompt,
                completion,
                ids.tolist() if as_lists else ids,
                mask.tolist() if as_lists else mask,
                logprobs.tolist() if as_lists else logprobs,
                advantage,
                int(np.min(trained)) if len(trained) else version,
                group_id,
                RowMetrics(metrics),
                teacher_id=teacher_id,
            )
        )
    return rows


def recorded_rows(
    rollout: Rollout, advantages: Sequence[float | None], *, by_reward: bool
) -> list[dict[str, Any]]:
    """Return the rows of a rollout in the format of `score_record`.

    Args:
        rollout: one that was played.
        advantages: one for each of its `conversations_of`; None: that conversation is not a row.
        by_reward: whether the trainer uses advantages.
    """
    conversations = conversations_of(rollout)
    branches = [None, *trained_branches(rollout)][: len(conversations)]
    return [
        {
            "row": None,  # the trainer batches rows of any rollouts, as they come
            "branch": branch,
            "weight": 1.0,  # the loss counts tokens
            "advantages": [advantage] * len(conversation.turns) if by_reward else [],
        }
        for conversation, branch, advantage in zip(conversations, branches, advantages, strict=True)
        if advantage is not None
    ]


def joined(
    columns: Columns,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return ids, mask and logprobs of prompt and completion together."""
    before = len(columns.prompt_ids)
    ids = np.concatenate([columns.prompt_ids, columns.completion_ids]).astype(np.int64)
    mask, logprobs = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.float32)
    mask[before:] = columns.env_mask
    logprobs[before:] = np.where(columns.env_mask == 1, columns.logprobs, 0.0)
    return ids, mask, logprobs
