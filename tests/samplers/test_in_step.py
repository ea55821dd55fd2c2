"""Ranks whose model is sharded sample in step, however many turns each of them has."""

from pathlib import Path

import pytest

from tests.kit.training.ranks import run_ranks

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.slow
def test_sharded_ranks_with_unequal_turns_sample_what_a_whole_model_does(tmp_path: Path) -> None:
    for played in run_ranks("sharded", tmp_path):
        assert played["fsdp2"] == played["whole"]
        assert played["fsdp1"] == played["whole"]


@pytest.mark.slow
def test_a_trainer_whose_ranks_have_unequal_turns_trains_to_its_end(tmp_path: Path) -> None:
    """Under FSDP2 as accelerate makes it, two steps and an evaluation."""
    pytest.importorskip("trl")
    ranks = run_ranks("fsdp2", tmp_path)
    for played, turns in zip(ranks, (1, 3), strict=True):
        assert played["model"] == "FSDPQwen3ForCausalLM"
        assert played["turns"] == [[turns] * 2] * 4
        assert played["worst"] < 1e-3
        assert played["worst_one_late"] > 0.01  # the negative control: each logprob one token late
        assert played["after"] == ranks[0]["after"] != played["before"]
