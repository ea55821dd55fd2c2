"""GRPO on rows with images from vLLM: what it sampled is what the trained model says, step by step.

As in the tests of text, weights go by way of a file; all else is TRL's.
"""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.kit.servers.vllm_server import VLLMServer
from tests.kit.training.served_image_run import an_image_trainer, check_images, qwen_for_trl
from tests.kit.training.served_vision import Served
from tests.kit.training.vllm_training import exact_engines, send, shut_down

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL and vLLM among themselves


@pytest.fixture
def qwen(tmp_path: Path) -> Served:
    return qwen_for_trl(tmp_path / "model")


def first_layer(served: Served) -> Any:
    (weight,) = (p for name, p in served.model.named_parameters() if "patch_embed" in name)
    return weight.detach().clone()


@pytest.mark.parametrize("synced", [True, False], ids=["synced", "without sync"])
def test_rows_of_a_server(
    qwen: Served, synced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl.generation.vllm_client import VLLMClient

    server = VLLMServer(qwen.folder).start()
    before = first_layer(qwen)

    def update(client: Any, metadata: Any, params: Any) -> None:
        if synced:
            send(server, tmp_path, params)

    monkeypatch.setattr(VLLMClient, "init_communicator", lambda client, **_: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", update)
    try:
        server.ready()
        settings = {"vllm_mode": "server", "vllm_server_base_url": server.url}
        trainer = an_image_trainer(qwen, tmp_path / "out", **settings)
        trainer.train()
    finally:
        server.kill()
    assert not torch.equal(first_layer(qwen), before), "the vision tower learns"
    check_images(trainer, synced=synced)


def test_rows_of_an_engine_in_the_process(
    qwen: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact_engines(monkeypatch)
    settings = {"vllm_mode": "colocate", "vllm_max_model_length": 1024}
    trainer = an_image_trainer(qwen, tmp_path / "out", **settings)
    trainer.train()
    shut_down(trainer.vllm_generation.llm)
    check_images(trainer)
