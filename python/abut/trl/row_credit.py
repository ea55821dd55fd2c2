"""Credit under the trainer: gathers the scored rollouts of all ranks, and spreads what they get.

The numbers are those of `abut.trl.credit`. A group may be cut by ranks, so every rank computes the
advantages of all rollouts, and keeps its own.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from abut.errors import RolloutError, text_of
from abut.rollout.rollout import Branch, Rollout, TurnRecord
from abut.trl.credit import (
    Credited,
    ScoredConversation,
    ScoredRollout,
    ScoredTurn,
    credited,
    token_advantages,
)
from abut.trl.ranks import gathered
from abut.trl.returns import Floats, increments
from abut.trl.row_batch import RowBatch


def advantages_of_rows(trainer: Any, batch: RowBatch, advantages: Sequence[float]) -> list[Floats]:
    """Return, for each row without padding, the advantages of its trained tokens, `(n,)` float64.

    Every rank takes part.

    Args:
        trainer: a `GRPOTrainer`.
        batch: its rows, with the rewards that TRL computed.
        advantages: TRL's, of this rank's rollouts.

    Raises:
        ValueError: as `credited`; raised on all ranks.
        RolloutError: a row has other tokens than its turns; or another rank raised.
        Exception: what `credit` raises; on the other ranks a RolloutError says so.
    """
    scored = scored_rollouts(batch, rewards_of(trainer, batch), advantages)
    found = _same_on_all_ranks(trainer, batch, scored)
    first = trainer.accelerator.process_index * len(batch.rollouts)
    alone = sum(found.alone) / len(found.alone)
    trainer._metrics["train"]["rollout/alone_frac"].append(alone)
    rows = []
    for row, (k, j) in enumerate(batch.places):
        turns = scored[k].conversations[j].turns
        rows.append(token_advantages(turns, found.advantages[first + k][j]))
        trained = sum(batch.lists["env_mask"][row])
        if len(rows[-1]) != trained:
            raise RolloutError(
                f"rollout {scored[k].rollout_id!r}, conversation {j}: its turns have "
                f"{len(rows[-1])} tokens and its row trains {trained}, so a trained token is in no "
                "turn, or in two\nhint: whoever made the rollout must list each of its turns"
            )
    return rows


def _same_on_all_ranks(trainer: Any, batch: RowBatch, scored: list[ScoredRollout]) -> Credited:
    accelerator = trainer.accelerator
    everywhere = [one for of_rank in gathered(accelerator, scored) for one in of_rank]
    found, error = None, None
    try:
        found = credited(
            batch.credit,
            everywhere,
            num_generations=trainer.num_generations,
            scale_rewards=trainer.scale_rewards,
        )
    except Exception as raised:
        error = raised
    # No rank may wait in the next collective for one that has given up.
    said = gathered(accelerator, None if error is None else text_of(error))
    if error is not None:
        raise error
    for rank, of_rank in enumerate(said):
        if of_rank is not None:
            raise RolloutError(f"rank {rank} has ended training: {of_rank}")
    assert found is not None
    return found


def rewards_of(trainer: Any, batch: RowBatch) -> list[float | None]:
    """Return the reward of each rollout of this rank, as TRL weighs its functions; None: no score.

    Args:
        trainer: a `GRPOTrainer`.
        batch: has the rewards of all ranks.
    """
    weights = trainer.reward_weights.tolist()
    first = trainer.accelerator.process_index * len(batch.rollouts)
    found: list[float | None] = []
    for of_rollout in batch.rewards[first : first + len(batch.rollouts)].tolist():
        known = [w * r for w, r in zip(weights, of_rollout, strict=True) if not math.isnan(r)]
        found.append(sum(known) if known else None)
    return found


def scored_rollouts(
    batch: RowBatch, rewards: Sequence[float | None], advantages: Sequence[float]
) -> list[ScoredRollout]:
    """Return this rank's rollouts as `credit` gets them.

    Args:
        batch: their rows.
        rewards: of each rollout.
        advantages: of each rollout.
    """
    return [
        ScoredRollout(
            rollout.rollout_id,
            rewards[k],
            advantages[k],
            [
                _scored_conversation(turns, batch.scores_run[k])
                for turns in _turns_of_rows(rollout, batch.conversations[k])
            ],
        )
        for k, rollout in enumerate(batch.rollouts)
    ]


def _scored_conversation(turns: Sequence[TurnRecord], score_runs: bool) -> ScoredConversation:
    rewards = [turn.reward for turn in turns]
    if score_runs:
        rewards = increments(rewards)
    return ScoredConversation(
        None,
        None,
        [ScoredTurn(turn.end - turn.start, r) for turn, r in zip(turns, rewards, strict=True)],
    )


def _turns_of_rows(rollout: Rollout, conversations: Sequence[Branch]) -> list[list[TurnRecord]]:
    """Return the turns of each conversation that are trained in its row, the main one first."""
    if rollout.failed or not conversations:
        return [[]]  # its row is a stop token that is not trained
    main = [turn for turn in rollout.turns if turn.end > turn.start]
    return [main, *(_runs(other) for other in conversations[1:])]


def _runs(conversation: Branch) -> list[TurnRecord]:
    mask = np.concatenate([[0], conversation.columns.env_mask, [0]]).astype(np.int8)
    starts, ends = np.flatnonzero(np.diff(mask) == 1), np.flatnonzero(np.diff(mask) == -1)
    return [TurnRecord(int(a), int(b)) for a, b in zip(starts, ends, strict=True)]
