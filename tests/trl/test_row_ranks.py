"""Two ranks with different numbers of rows, one of them without branches: they train as one."""

from pathlib import Path

import pytest

from tests.kit.training.ranks import run_ranks

pytest.importorskip("torch")
pytest.importorskip("trl")

import transformers

from abut.trl.version import METRICS_OF_TOKENS, trl_version
from tests.kit.training.ranks.rows import WHOLE_ROWS, script
from tests.kit.training.row_cases import WORST
from tests.kit.training.scripted_rows import RowsRun

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "loss_type", "iterations"),
    [("ddp", "grpo", 2), ("ddp", "dapo", 1), ("fsdp2", "grpo", 1)],
)
def test_the_gradient_of_two_ranks_is_that_of_all_rollouts(
    tmp_path: Path, kind: str, loss_type: str, iterations: int
) -> None:
    if kind == "fsdp2" and transformers.__version__.startswith("4."):
        pytest.skip("transformers 4 sets up FSDP on a GPU alone")
    ranks = run_ranks("rows", tmp_path, kind, loss_type, iterations)
    wrapped = "DistributedDataParallel" if kind == "ddp" else "FSDPQwen3ForCausalLM"
    assert [rank["model"] for rank in ranks] == [wrapped] * 2
    (few, padded), (many, also) = (rank["rows"] for rank in ranks)
    assert few == 4 < many <= padded == also
    for rank in ranks:
        assert len(rank["errors"]) == iterations
        assert max(rank["errors"]) < WORST, rank["errors"]
    assert ranks[0]["logged"]["entropy"] > 1
    assert ranks[0]["logged"]["rollout/rows/mean"] == (few + many) / 8


def test_the_metrics_of_two_ranks_are_those_of_all_rollouts(tmp_path: Path) -> None:
    """Rank 0 has padding, in pieces of their own, and rank 1 has none."""
    ranks = run_ranks("rows", tmp_path, "metrics")
    (few, padded), (many, also) = (rank["rows"] for rank in ranks)
    assert few == 4 < many == padded == also
    whole = RowsRun(tmp_path, script, rollouts=8, **WHOLE_ROWS).train()
    assert not whole.trainer.abut_rows.padding_rows
    prefixes: tuple[str, ...] = ("sampling/importance_sampling_ratio/", "rollout/rows/")
    if trl_version() >= METRICS_OF_TOKENS:  # before, TRL takes means of ranks
        prefixes += ("entropy", "clip_ratio/")
    first, second = whole.trainer.state.log_history[:2]
    for step in (first, second):
        names = {name for name in step if name.startswith(prefixes)}
        right = {name: step[name] for name in names}
        for rank in ranks:
            logged = rank["logged"][step is second]
            assert {name: logged[name] for name in names} == pytest.approx(right, rel=1e-4)
    assert first["sampling/importance_sampling_ratio/mean"] != 1
    if trl_version() >= METRICS_OF_TOKENS:
        assert second["clip_ratio/low_mean"] > 0


@pytest.mark.deepspeed
@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_the_gradient_under_deepspeed(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("deepspeed")
    for rank in run_ranks("rows", tmp_path, kind, "grpo", 1, DS_ACCELERATOR="cpu"):
        assert rank["model"] == "DeepSpeedEngine"
        # It exchanges gradients in float32, and they are read off a step.
        assert max(rank["errors"]) < 2e-5, rank["errors"]


@pytest.mark.deepspeed
def test_without_the_flag_deepspeed_steps_after_each_piece(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    for rank in run_ranks("rows", tmp_path, "zero2-unflagged", "grpo", 1, DS_ACCELERATOR="cpu"):
        assert max(rank["errors"]) > 0.05, rank["errors"]
