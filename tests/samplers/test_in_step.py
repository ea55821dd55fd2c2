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
