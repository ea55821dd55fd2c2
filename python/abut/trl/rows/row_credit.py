"""Credit within the trainer: gathers the scored rollouts of all ranks, and spreads advantages.

`abut.trl.credit` computes the numbers. A group may be split over ranks, so every rank computes the
advantages of all rollouts and keeps its own.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from abut.errors import RolloutError, text_of
from abut.notices import Once
from abut.rollout.rollout import Branch, TurnRecord
from abut.trl.credit import (
    Credited,
    ReverseKL,
    ScoredConversation,
    ScoredRollout,
    ScoredTurn,
    credited,
    token_advantages,
    turn_credit,
)
from abut.trl.ranks import gathered
from abut.trl.returns import Floats, increments
from abut.trl.rewards import OWN_REWARDS, are_of_envs, env_weight, total_reward
from abut.trl.rows.row_batch import RowScoring
from abut.trl.trainer_checks import check_one_reward

_once = Once(logging.getLogger(__name__))


class CreditedRows(NamedTuple):
    """The advantages of each row without padding.

    Attributes:
        of_tokens: of its trained tokens, `(n,)` float64.
        of_turns: of its own turns, each as the mean over its tokens.
    """

    of_tokens: list[Floats]
    of_turns: list[list[float]]


def advantages_of_rows(
    trainer: Any, scoring: RowScoring, advantages: Sequence[float]
) -> CreditedRows:
    """Return the advantages that the credit gives the rows of this rank.

    All ranks must call it.

    Args:
        trainer: a `GRPOTrainer`.
        scoring: its rows, with the rewards that TRL computed.
        advantages: TRL's, of this rank's rollouts.

    Raises:
        ValueError: as for `credited`; raised on all ranks.
        RolloutError: the tokens of a row and of its turns differ; or another rank raised.
        Exception: any error of `credit`; the other ranks raise a RolloutError.
    """
    rewards, batch = rewards_of(trainer, scoring), scoring.batch
    scored = scored_rollouts(scoring, rewards, advantages, env_weight(trainer))
    if scoring.own_rewards:
        _check_own_rewards(trainer)
    found = _same_on_all_ranks(trainer, scoring, scored)
    first = trainer.accelerator.process_index * len(batch.rollouts)
    alone = sum(found.alone) / len(found.alone)
    trainer._metrics["train"]["rollout/alone_frac"].append(alone)
    of_rows = CreditedRows([], [])
    for k, j in batch.places:
        turns = scored[k].conversations[j].turns
        of_tokens = token_advantages(turns, found.advantages[first + k][j])
        if isinstance(scoring.credit, ReverseKL) and len(of_tokens) and _has_reward(scored[k], j):
            divergence = scoring.batch.conversations[k][j].reverse_kl
            assert divergence is not None, "_check_scored has seen it"
            of_tokens = of_tokens - scoring.credit.coef * divergence
        ends = np.cumsum([turn.tokens for turn in turns], dtype=np.intp)
        of_rows.of_turns.append([float(one.mean()) for one in np.split(of_tokens, ends)[:-1]])
        of_rows.of_tokens.append(of_tokens)
    return of_rows


def _has_reward(rollout: ScoredRollout, conversation: int) -> bool:
    own = rollout.conversations[conversation].reward
    return own is not None or rollout.reward is not None


def _check_scored(scoring: RowScoring, scored: Sequence[ScoredRollout]) -> None:
    """Refuse rows of this rank that would be trained without teacher scores.

    Raises:
        RolloutError: there is such a row; names the rollout and the conversation.
    """
    for k, j in scoring.batch.places:
        if not scored[k].conversations[j].turns:
            continue
        if scoring.batch.conversations[k][j].reverse_kl is None:
            raise RolloutError(
                f"rollout {scored[k].rollout_id!r}, conversation {j}: it would be trained, but "
                "the teacher has not scored it\n"
                "hint: code that changes rollouts must not change TurnRecord.streams"
            )


def _check_tokens(scoring: RowScoring, scored: Sequence[ScoredRollout]) -> None:
    """Refuse rows of this rank whose trained tokens are not exactly those of their turns.

    Raises:
        RolloutError: there is such a row; names the rollout and the conversation.
    """
    for row, (k, j) in enumerate(scoring.batch.places):
        tokens = sum(turn.tokens for turn in scored[k].conversations[j].turns)
        trained = sum(scoring.columns["env_mask"][row])
        if tokens != trained:
            raise RolloutError(
                f"rollout {scored[k].rollout_id!r}, conversation {j}: its turns have {tokens} "
                f"sampled tokens but its row trains {trained}, so some trained token belongs to "
                "no turn or to two turns\n"
                "hint: the code that made the rollout must list each turn exactly once"
            )


def _check_own_rewards(trainer: Any) -> None:
    """Refuse settings that do not allow rewards of conversations; the same on all ranks.

    Raises:
        ValueError: names the setting.
    """
    check_one_reward(trainer, "AgentResult.rewards")
    if not are_of_envs(trainer.reward_funcs):
        _once.warn("own rewards", OWN_REWARDS)


def _same_on_all_ranks(trainer: Any, scoring: RowScoring, scored: list[ScoredRollout]) -> Credited:
    accelerator = trainer.accelerator
    everywhere = [one for of_rank in gathered(accelerator, scored) for one in of_rank]
    found, error = None, None
    try:
        _check_tokens(scoring, scored)
        if isinstance(scoring.credit, ReverseKL):
            _check_scored(scoring, scored)
        found = credited(
            turn_credit(scoring.credit),
            everywhere,
            num_generations=trainer.num_generations,
            scale_rewards=trainer.scale_rewards,
        )
    except Exception as raised:
        error = raised
    # A rank must not wait in the next collective for a rank that has given up.
    said = gathered(accelerator, None if error is None else text_of(error))
    if error is not None:
        raise error
    for rank, of_rank in enumerate(said):
        if of_rank is not None:
            raise RolloutError(f"training ended on rank {rank}: {of_rank}")
    assert found is not None
    return found


def rewards_of(trainer: Any, scoring: RowScoring) -> list[float | None]:
    """Return the weighted reward of each rollout of this rank; None: no score.

    Args:
        trainer: a `GRPOTrainer`.
        scoring: has the rewards of all ranks.
    """
    weights, count = trainer.reward_weights.tolist(), len(scoring.batch.rollouts)
    first = trainer.accelerator.process_index * count
    of_rollouts = scoring.rewards[first : first + count].tolist()
    return [
        total_reward([None if math.isnan(r) else r for r in of_functions], weights)
        for of_functions in of_rollouts
    ]


def scored_rollouts(
    scoring: RowScoring,
    rewards: Sequence[float | None],
    advantages: Sequence[float],
    weight: float,
) -> list[ScoredRollout]:
    """Return this rank's rollouts as `credit` gets them.

    Args:
        scoring: their rows.
        rewards: of each rollout.
        advantages: of each rollout.
        weight: the factor on the rewards of turns, see `env_weight`.
    """
    found = []
    for k, rollout in enumerate(scoring.batch.rollouts):
        # The row of a rollout that failed is a stop token that is not trained.
        rows = [] if rollout.failed else scoring.batch.conversations[k]
        every = [_scored(row, weight, runs=scoring.scores_run[k]) for row in rows]
        none = ScoredConversation(rollout.name, rollout.row_reward, [])
        found.append(ScoredRollout(rollout.rollout_id, rewards[k], advantages[k], every or [none]))
    return found


def _scored(row: Branch, weight: float, *, runs: bool) -> ScoredConversation:
    turns = own_turns(row)
    rewards = [turn.reward for turn in turns]
    if runs:
        rewards = increments(rewards)
    paid = [None if reward is None else weight * reward for reward in (*row.before, *rewards)]
    before, own = paid[: len(row.before)], paid[len(row.before) :]
    return ScoredConversation(
        row.name,
        row.reward,
        [ScoredTurn(turn.end - turn.start, r) for turn, r in zip(turns, own, strict=True)],
        before,
    )


def own_turns(row: Branch) -> list[TurnRecord]:
    """Return the turns of a conversation that its row trains."""
    return [turn for turn in row.turns if turn.end > turn.start and row.trained]
