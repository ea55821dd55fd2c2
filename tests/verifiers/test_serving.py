"""Serving begins with the first batch and ends with the gateway; keys are kept from programs."""

import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.gateway import Gateway
from abut.verifiers import verifiers_env
from tests.kit.stage.rollouts import eventually
from tests.kit.training.episode_run import EpisodeRun
from tests.kit.training.ranks import run_ranks


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes when any environment begins and ends to serve."""
    from verifiers.v1.env import Env

    serving, noted = Env.serving, list[str]()

    @asynccontextmanager
    async def noting(self: Any) -> Any:
        noted.append("begins")
        async with serving(self):
            yield
        noted.append("ends")

    monkeypatch.setattr(Env, "serving", noting)
    return noted


def test_it_serves_once_for_all_batches(tmp_path: Path, served: list[str]) -> None:
    sums = verifiers_env("abut_sums")
    # Many at once: the connections of verifiers' one pool stay open when a rollout ends.
    run = EpisodeRun(
        sums,
        sums.dataset(),
        tmp_path,
        max_steps=3,
        learning_rate=1e-3,
        per_device_train_batch_size=16,
    )
    run.train(stop=False)
    assert len(run.outputs) == 3
    assert run.errors() == [None] * 48
    assert served == ["begins"]
    run.stop()
    assert eventually(lambda: served == ["begins", "ends"])


def test_two_environments_play_side_by_side(tmp_path: Path, served: list[str]) -> None:
    from datasets import concatenate_datasets

    sums, duel = verifiers_env("abut_sums"), verifiers_env("abut_duel")
    dataset = concatenate_datasets([sums.dataset(1), duel.dataset(1)])
    run = EpisodeRun({sums.name: sums, duel.name: duel}, dataset, tmp_path).train()
    assert run.errors() == [None] * 4
    assert run.worst() < 1e-5
    assert [rollout.name for rollout in run.played[:2]] == ["agent"] * 2
    assert all(len(rollout.branches) == 1 for rollout in run.played[2:])
    assert eventually(lambda: sorted(served) == ["begins"] * 2 + ["ends"] * 2)


def test_no_program_that_verifiers_starts_gets_the_key(tmp_path: Path) -> None:
    gateway = Gateway()
    sums = verifiers_env("abut_sums")
    EpisodeRun(sums, sums.dataset(), tmp_path, make={"gateway": gateway}).train()
    holders = [name for name, value in os.environ.items() if value == gateway.key]
    assert len(holders) == 1
    assert "API_KEY" in holders[0]  # verifiers keeps these from what it starts


def test_two_ranks(tmp_path: Path) -> None:
    tasksets = Path(__file__).parent / "tasksets"
    ranks = run_ranks("episodes", tmp_path, timeout_s=500, path=[tasksets])
    assert [rank["errors"] for rank in ranks] == [[None] * 4] * 2
    assert all(rank["worst"] < 1e-5 for rank in ranks)
    # The gradient of both is one, and every rollout has the row of each seat that was asked.
    assert ranks[0]["gradient"] == pytest.approx(ranks[1]["gradient"], rel=1e-9)
    for rank in ranks:
        assert rank["names"] == [["player0", "player1"]] * 2 + [["player0"]] * 2
        for names, rewards in zip(rank["names"], rank["rewards"], strict=True):
            assert rewards[0] == (-1 if names == ["player0"] else -rewards[1])
