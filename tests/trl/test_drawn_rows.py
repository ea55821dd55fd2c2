"""`RolloutConfig(branch="random")` under TRL's own trainer: the mean gradient over all draws."""

import itertools
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import trl

import abut.trl
from abut import Columns
from abut.gateway.ledger.row import chances_of
from abut.trl.rows.row_weights import ROLLOUTS_VOTE
from tests.kit.training.scripted_rows import RowsRun, random_columns, rollout_of

REWARDS = (1.0, 0.25)
_RNG = random.Random(0)
# Two rollouts of two conversations, of which one has many more tokens than the other.
ROWS: list[list[Columns]] = [
    [random_columns(_RNG, turns=turns) for turns in of_rollout] for of_rollout in ((1, 4), (5, 2))
]


def gradient(folder: Path, loss_type: str, draw: tuple[int, ...] | None) -> Any:
    """Of one step: with all rows, or under TRL's own trainer with one row for each rollout."""

    def script(rng: random.Random, task: Any) -> Any:
        rows = ROWS[task.member]
        if draw is not None:
            rows = [rows[draw[task.member]]]
        return rollout_of(task, REWARDS[task.member], *rows)

    run = RowsRun(
        folder,
        script,
        trainer_class=abut.trl.GRPOTrainer if draw is None else trl.GRPOTrainer,
        rollouts=len(ROWS),
        num_generations=len(ROWS),
        loss_type=loss_type,
    )
    return run.train().gradients[0]


def of_all_draws(folder: Path, loss_type: str) -> dict[tuple[int, ...], Any]:
    draws = itertools.product(*(range(len(rows)) for rows in ROWS))
    return {draw: gradient(folder / str(draw), loss_type, draw) for draw in draws}


def expected(drawn: dict[tuple[int, ...], Any], *, by_tokens: bool) -> Any:
    """The mean over all draws, each as often as it is made."""
    chances = []
    for rows in ROWS:
        spans = [
            SimpleNamespace(delivered=True, followed=True, sampled_tokens=int(row.env_mask.sum()))
            for row in rows
        ]
        weights = chances_of(spans, by_tokens=by_tokens)  # type: ignore[arg-type]
        chances.append([weight / sum(weights) for weight in weights])
    return sum(
        math.prod(chance[row] for chance, row in zip(chances, draw, strict=True)) * of_draw
        for draw, of_draw in drawn.items()
    )


def error(ours: Any, right: Any) -> float:
    return float((ours - right).norm() / right.norm())


@pytest.mark.parametrize("loss_type", sorted(ROLLOUTS_VOTE))
def test_drawn_by_tokens_the_mean_gradient_is_that_of_all_rows(
    tmp_path: Path, loss_type: str
) -> None:
    right = gradient(tmp_path / "all", loss_type, None)
    drawn = of_all_draws(tmp_path, loss_type)
    assert error(expected(drawn, by_tokens=True), right) < 1e-6
    # The control: each row drawn equally often.
    assert error(expected(drawn, by_tokens=False), right) > 0.1


def test_drawn_equally_often_the_mean_gradient_is_a_share_of_that_of_all_rows(
    tmp_path: Path,
) -> None:
    right = gradient(tmp_path / "all", "dr_grpo", None) / 2  # of two conversations each
    drawn = of_all_draws(tmp_path, "dr_grpo")
    assert error(expected(drawn, by_tokens=False), right) < 1e-6
    assert error(expected(drawn, by_tokens=True), right) > 0.1
