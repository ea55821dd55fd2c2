"""Two ranks of agents on gloo: one address serves both, and what fails on one is known to both."""

from pathlib import Path

import pytest

from tests.kit.training.ranks import run_ranks

pytest.importorskip("torch")
pytest.importorskip("trl")

pytestmark = pytest.mark.slow


def test_one_address_serves_all_ranks_and_failures_are_counted_together(tmp_path: Path) -> None:
    """All of rank 1 fail, half of all: no more than may, though more than may on that rank."""
    ranks = run_ranks("agents", tmp_path, "some fail")
    for rank, got in enumerate(ranks):
        assert "raised" not in got, got
        assert len(got["turns"]) == 2 * 4  # each rank has sampled its own rollouts
        assert all(turn.endswith(f".0r{rank}") for turn in got["turns"])
    assert ranks[0]["errors"] == [None] * 4
    assert all(row.count("I am rank 0") == 2 for row in ranks[0]["rows"])
    assert all("boom" in error for error in ranks[1]["errors"])


def test_too_many_failures_end_all_ranks_alike(tmp_path: Path) -> None:
    for got in run_ranks("agents", tmp_path, "too many fail"):
        assert got["raised"].startswith(
            "RolloutError: 4 of 8 rollouts on 2 ranks failed, more than max_failed_frac=0.4 allows"
        )
        assert "4 x EnvError: Service raised ValueError: boom" in got["raised"]


def test_an_error_of_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    one, other = run_ranks("agents", tmp_path, "the policy is down")
    assert one["raised"] == (
        "RolloutError: training ended on rank 1: SamplerError: the server is down"
    )
    assert other["raised"] == "SamplerError: the server is down"
