"""Two ranks, on gloo: groups are scored where they are whole, and tasks go round on all of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.training.ranks import run_ranks

pytest.importorskip("eval_protocol")
pytest.importorskip("trl")

HERE = Path(__file__).parent


def play(folder: Path, scenario: str) -> list[dict[str, Any]]:
    """What each of two ranks got."""
    return run_ranks("evals", folder, scenario, timeout_s=400, path=[HERE])


def test_groups_that_are_whole_on_a_rank_are_scored_there(tmp_path: Path) -> None:
    ranks = play(tmp_path, "whole")
    for rank in ranks:
        assert "raised" not in rank
        assert len(rank["outputs"]) == 2
        for output in rank["outputs"]:
            assert output["error"] == [None] * 4
            said = [len(messages[-1]["content"] or "") for messages in output["messages"]]
            shortest = [float(length == min(said)) + 0.04 for length in said]
            assert output["env_reward"] == output["eval_score"] == pytest.approx(shortest)
    asked = [o["messages"][0][0]["content"] for rank in ranks for o in rank["outputs"]]
    assert len(set(asked)) == 4  # each is another row


def test_a_group_that_ranks_share_is_an_error_on_both(tmp_path: Path) -> None:
    """Twelve rollouts in groups of four: six on each rank. No rank waits for the other."""
    for rank in play(tmp_path, "cut"):
        assert "per_device_train_batch_size" in rank["raised"]
        assert rank["outputs"] == []


def test_tasks_go_round_over_ranks_and_batches(tmp_path: Path) -> None:
    ranks = play(tmp_path, "rotating")
    tasks = [
        [{messages[1]["content"] for messages in output["messages"]} for output in rank["outputs"]]
        for rank in ranks
    ]
    assert tasks == [[{"A"}, {"C"}], [{"B"}, {"D"}]]
