"""The page on images does what it says, on a real trainer and a tiny model."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")
pytest.importorskip("PIL")

import abut
from abut.images import Image
from tests.kit.training.example_run import SMALL, blocks_of, run_block
from tests.kit.training.vision import llava, model_of


def test_the_page_on_images_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    red = Image.of(np.full((40, 30, 3), (220, 40, 40), np.uint8))
    Path("red.png").write_bytes(red.data)
    family = llava()
    (block,) = blocks_of("images.md")
    made, (output,) = run_block(
        monkeypatch, block, family.processor, model_of(family), max_steps=1, **SMALL
    )
    assert made["trainer"].state.global_step == 1
    assert output["stop_reason"] == ["env_done"] * 8
    records = list(abut.records.read_records("runs/squares"))
    assert [[image["hash"] for image in record["images"]] for record in records] == [[red.hash]] * 8
    assert [file.name for file in Path("runs/pictures").iterdir()] == [f"{red.hash}.png"]
