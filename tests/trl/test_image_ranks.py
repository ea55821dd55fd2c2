"""Two ranks, one of them without images: both go through the vision tower in every pass."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.training.ranks import run_ranks

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("PIL")

pytestmark = pytest.mark.slow


WRAPPED = {
    "ddp": "DistributedDataParallel",
    "fsdp2": "FSDPQwen2_5_VLForConditionalGeneration",
    "zero2": "DeepSpeedEngine",
    "zero3": "DeepSpeedEngine",
}


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_rank_without_images_keeps_in_step(tmp_path: Path, kind: str) -> None:
    check_in_step(run_ranks("images", tmp_path, kind), kind)


@pytest.mark.deepspeed
@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_a_rank_without_images_keeps_in_step_under_deepspeed(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("deepspeed")
    check_in_step(run_ranks("images", tmp_path, kind, DS_ACCELERATOR="cpu"), kind)


def check_in_step(ranks: list[Any], kind: str) -> None:
    assert [rank["model"] for rank in ranks] == [WRAPPED[kind]] * 2
    purposes = ["eval loss", "eval old", "train loss", "train old"]
    for rank, counts in zip(ranks, ([0, 2], [0]), strict=True):
        images: dict[str, Any] = {}
        for purpose, count in rank["images"]:
            images.setdefault(purpose, []).append(count)
        assert sorted(images) == purposes
        assert images["train old"] == images["train loss"] == counts
        assert rank["worst"] < 1e-5
    first, second = (rank["gradients"] for rank in ranks)
    assert first == pytest.approx(second, rel=1e-6), "one gradient"
    tower = {name: norm for name, norm in first.items() if "visual" in name}
    assert max(tower.values()) > 0


def test_agents_of_one_rank_show_screenshots_through_the_gateway(tmp_path: Path) -> None:
    """Their rows and branches have images, and those of the other rank's agents have none."""
    first, second = run_ranks("image_agents", tmp_path)
    assert first["model"] == second["model"] == "DistributedDataParallel"
    assert first["images"] == [["train loss", 2]]
    assert second["images"] == [["train loss", 0]]
    assert max(*first["worst"], *second["worst"]) < 1e-5
    assert {tuple(causes) for causes in first["causes"]} == {("rewritten",)}
    assert {tuple(causes) for causes in first["dropped"]} == {("rewritten",)}
    assert {*map(tuple, second["causes"]), *map(tuple, second["dropped"])} == {()}


def test_without_spare_rows_the_ranks_fall_apart(tmp_path: Path) -> None:
    """The control: weights of the vision tower have no gradient on a rank without images."""
    with pytest.raises(AssertionError, match="Expected to have finished reduction"):
        run_ranks("images", tmp_path, "ddp-spareless")
