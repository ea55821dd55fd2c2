"""Tasks with images: played where the model takes them, and refused before a batch elsewhere."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("PIL")

from abut.verifiers import verifiers_env
from tests.kit.training.episode_run import EpisodeRun
from tests.kit.training.image_run import ImageRun


def test_images_of_the_prompt_and_of_later_turns_are_trained(tmp_path: Path) -> None:
    colours = verifiers_env("abut_colours")
    dataset = colours.dataset()
    assert dataset["prompt"][0] == "Which colour?"
    run = ImageRun("llava", tmp_path, env=colours, rows=[*dataset], max_steps=1).train()
    run.trainer.rollout_func._tasks.route.gateway.stop()
    from_own, from_engine = run.worst("train loss")
    assert from_own < 1e-5
    assert from_engine < 1e-5
    assert {compared.images for compared in run.trainer.compared} == {2}


def test_a_model_without_images_refuses_them_before_the_first_batch(tmp_path: Path) -> None:
    colours = verifiers_env("abut_colours")
    run = EpisodeRun(colours, colours.dataset(), tmp_path)
    with pytest.raises(Exception, match="row 0 of abut_colours has images") as raised:
        run.train()
    assert "but the model does not accept images\nhint: train a vision-language model" in str(
        raised.value
    )


def test_so_does_a_dataset_that_another_process_has_made(tmp_path: Path) -> None:
    from datasets import Dataset

    made = verifiers_env("abut_colours").dataset()
    rows = [dict(row) for row in made]
    assert json.loads(rows[0]["verifiers_task"])["colours"] == ["red", "blue"]
    run = EpisodeRun(verifiers_env("abut_colours"), Dataset.from_list(rows), tmp_path)
    with pytest.raises(Exception, match="row 0 of abut_colours has images"):
        run.train()
