"""Rows with images on the GPU, from the model in the process and from vLLM."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("PIL")

from abut.images import Image
from abut.samplers.vllm import VLLMServerSampler
from tests.kit.training.example_run import training_on
from tests.kit.training.image_run import ImageRun


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_logprobs_in_the_loss_are_those_of_the_engine(
    name: str, device: str, close: float, tmp_path: Path
) -> None:
    run = ImageRun(name, tmp_path, **training_on(device)).train()
    assert run.trainer.model.device.type == device
    assert max(run.worst("train loss")) < close
    compared = run.trainer.compared
    assert (len(compared), {c.images for c in compared}) == (16, {0, 1, 2, 3})


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_rollouts_of_a_server_are_exact(
    name: str, close: float, start_server: Any, tmp_path: Path
) -> None:
    from tests.kit.training.served_vision import play, served, worst

    one = served(name, tmp_path / "model")
    server = start_server(one.folder)
    rollouts = play(one, VLLMServerSampler(server.url))
    assert [len(rollout.images) for rollout in rollouts] == [0, 1, 3, 3]
    assert worst(one, rollouts) < close
    # The control: other pictures under the same ids have other logprobs.
    assert worst(one, rollouts, lambda image: Image.of(255 - image.pixels)) > 0.1


def test_training_with_vllm_in_the_process(
    device: str, close: float, vllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.kit.training.served_image_run import an_image_trainer, check_images, qwen_for_trl
    from tests.kit.training.vllm_training import exact_engines, shut_down

    exact_engines(monkeypatch, device)
    trainer = an_image_trainer(
        qwen_for_trl(tmp_path / "model"),
        tmp_path / "out",
        vllm_mode="colocate",
        vllm_max_model_length=1024,
        **training_on(device),
    )
    trainer.train()
    shut_down(trainer.vllm_generation.llm)
    check_images(trainer, close=close)
