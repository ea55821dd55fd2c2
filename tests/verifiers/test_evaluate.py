"""Environments of verifiers without a trainer."""

from typing import Any

import pytest

pytest.importorskip("torch")

import abut
from abut import RolloutConfig
from abut.verifiers import verifiers_env
from tests.kit.training.scripted_rows import float64_model

SHORT = RolloutConfig(max_turn_tokens=6, retries=0)


@pytest.fixture(scope="module")
def policy() -> dict[str, Any]:
    tokenizer, model = float64_model()
    return {"sampler": model, "tokenizer": tokenizer, "config": SHORT}


def test_an_evaluation_has_the_environments_scores(policy: dict[str, Any]) -> None:
    sums = verifiers_env("abut_sums")
    rollouts = abut.play(sums, sums.dataset(4), k=2, **policy)
    assert [rollout.error for rollout in rollouts] == [None] * 8
    rewards = [rollout.reward for rollout in rollouts]
    assert rewards == [r.extras["abut_sums/agent/reward/right"] for r in rollouts]
    again = abut.evaluate(sums, sums.dataset(4), k=2, **policy)  # it serves once more
    assert again.mean_reward == pytest.approx(sum(rewards) / 8)


def test_both_seats_play_and_have_rewards(policy: dict[str, Any]) -> None:
    duel = verifiers_env("abut_duel")
    for k, rollout in enumerate(abut.play(duel, duel.dataset(2), **policy)):
        given = {rollout.names[session]: reward for session, reward in rollout.rewards.items()}
        assert given["player0"] == -given["player1"]
        assert given["player0"] == -1 if k else given["player0"] >= 1


def test_an_environment_of_verifiers_own_plays_another_taskset(policy: dict[str, Any]) -> None:
    best = verifiers_env("abut_sums", env="best-of-n", config={"n": 3})
    assert best.name == "best-of-n+abut_sums"
    (rollout,) = abut.play(best, best.dataset(1), **policy)
    rows = [rollout.main_row, *rollout.branches]
    assert [row.name for row in rows] == ["agent"] * 3
    assert rollout.reward == pytest.approx(sum(row.reward for row in rows) / 3)
    assert rollout.extras["best-of-n+abut_sums/agent/best"] > 0
